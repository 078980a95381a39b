"""The ranks that Bagua communicates among: the process's job, or what a script gives."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

import torch.distributed as dist

from emulator.replicas.comm.inprocess import Hub, InProcess
from emulator.replicas.comm.protocol import Communicator
from samba.distributed import job
from samba.distributed.bagua.backend import BaguaBackend
from samba.distributed.settings import deadline_seconds
from samba.support.slot import Slot
from samba.tensor.bagua_handle import BackendTensor


def _no_alarm(_: str) -> None:
    """Do nothing: a world without a job has no watchdog."""


class World:
    """The ranks that train together, and the backends of their models.

    Args:
        communicator: Their communicator; each backend duplicates it.
        nodes: Ranks by host, for hierarchical operations; asked of the ranks if None.
        alarm: Called while somebody waits; raises if the job has failed elsewhere.
    """

    def __init__(
        self,
        communicator: Communicator,
        nodes: Sequence[Sequence[int]] | None = None,
        alarm: Callable[[str], None] = _no_alarm,
    ) -> None:
        self.communicator, self.nodes, self.alarm = communicator, nodes, alarm
        self.rank, self.size = communicator.rank, communicator.size
        self.duplicates: Iterator[int] = itertools.count()
        self.tensors: weakref.WeakValueDictionary[tuple[str | None, str], BackendTensor] = (
            weakref.WeakValueDictionary()
        )
        self._backends: dict[str, BaguaBackend] = {}
        self._lock = threading.Lock()

    def backend(self, module_name: str) -> BaguaBackend:
        """The backend of a model, always the same for the same name.

        Args:
            module_name: Name of the model.
        """
        with self._lock:
            if module_name not in self._backends:
                self._backends[module_name] = BaguaBackend(module_name, self)
            return self._backends[module_name]


_own: ContextVar[World | None] = ContextVar("bagua_world", default=None)
_process: Slot[World] = Slot()
_lock = threading.Lock()


def current_world() -> World:
    """The world of this thread, or else of this process.

    The process's world is that of its data parallel job, or a world of one rank. Where torch's
    default process group is up, its ranks are the job.
    """
    own = _own.get()
    if own is not None:
        return own
    with _lock:
        running = job.current() or (job.adopt() if dist.is_initialized() else None)
        if running is not None:
            running.refuse_one_program("Bagua")
        world = _process.value
        if running is not None and (world is None or world.communicator.size == 1 < running.size):
            alarm = _no_alarm if running.watchdog is None else running.watchdog.check
            world = World(running.control, alarm=alarm)
        elif world is None:
            world = World(InProcess(Hub(1), 0, deadline=deadline_seconds()))
        _process.value = world
        return world


@contextlib.contextmanager
def use_communicator(
    communicator: Communicator, nodes: Sequence[Sequence[int]] | None = None
) -> Iterator[World]:
    """Let Bagua communicate through a communicator, in this thread and while the block runs.

    Args:
        communicator: The communicator, for example one of
            ``emulator.replicas.comm.inprocess.run_ranks``.
        nodes: Ranks by host, for hierarchical operations; asked of the ranks if None.
    """
    world = World(communicator, nodes)
    token = _own.set(world)
    try:
        yield world
    finally:
        _own.reset(token)


def get_rank() -> int:
    """Number of this rank."""
    return current_world().rank


def get_world_size() -> int:
    """How many ranks train together."""
    return current_world().size


def get_backend(module_name: str) -> BaguaBackend:
    """The backend of a model, always the same for the same name.

    Args:
        module_name: Name of the model.
    """
    return current_world().backend(module_name)
