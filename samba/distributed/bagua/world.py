"""The ranks that Bagua communicates among, and the backends of their models."""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Protocol

import torch.distributed as dist

from emulator.replicas.comm.errors import DataParallelError
from emulator.replicas.comm.inprocess import Hub, InProcess
from emulator.replicas.comm.protocol import Communicator
from emulator.replicas.comm.worker import CommThread, Work
from samba.distributed import job
from samba.distributed.settings import deadline_seconds
from samba.errors import ArgumentError
from samba.support.slot import Slot
from samba.tensor.bagua_handle import BackendTensor

PADDING = "bagua_padding_tensor"
"""Tensors whose names begin so are always ready."""

Wait = Callable[[], object]
"""Called on the communication thread before a tensor is communicated, to wait for its values."""


class Hierarchy:
    """Communicators of a job, by host.

    Args:
        whole: Of all ranks.
        nodes: Ranks by host.

    Attributes:
        whole: Of all ranks.
        local: Of the ranks of this host; None where each host has one rank.
        leaders: Of the first rank of each host; None on the others.
        hosts: How many hosts there are.
    """

    def __init__(self, whole: Communicator, nodes: Sequence[Sequence[int]]) -> None:
        self.whole, self.hosts = whole, len(nodes)
        self.local: Communicator | None = None
        self.leaders: Communicator | None = None
        if len(nodes) == whole.size:
            return
        if len(nodes) == 1:
            self.local = whole
            if whole.rank == 0:
                self.leaders = InProcess(Hub(1), 0, deadline=whole.deadline)
        else:
            self.local = whole.split(nodes, "nodes")
            self.leaders = whole.split([[ranks[0] for ranks in nodes]], "leaders")


class OrderedBucket(Protocol):
    """A bucket, as its backend sees it."""

    name: str

    @property
    def handles(self) -> Sequence[BackendTensor]:
        """The bucket's tensors, padding included."""
        ...

    def run_ops(self) -> None:
        """Communicate it; called on the communication thread."""
        ...


class BaguaBackend:
    """Communicates the buckets of one model in the order in which they were registered.

    Tensors become ready in any order, different ones on different ranks. Buckets leave strictly in
    their order, around and around, so that all ranks always meet in the same collective.
    (Collectives in different orders give wrong sums without any error.)

    Args:
        name: Name of the model.
        world: The ranks.
    """

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.rank, self.size = world.rank, world.size
        self._hierarchy: Hierarchy | None = None
        self._thread: CommThread | None = None
        self._lock = threading.Lock()
        self._ring: deque[OrderedBucket] = deque()
        self._bucket_of: dict[int, OrderedBucket] = {}
        self._waits: dict[int, dict[int, Wait | None]] = {}
        self._pending: list[Work] = []

    @property
    def hierarchy(self) -> Hierarchy:
        """Communicators of this backend alone; the first use is a meeting of all ranks."""
        if self._hierarchy is None:
            self._hierarchy = self._meet()
        return self._hierarchy

    def _meet(self) -> Hierarchy:
        whole = self.world.communicator.duplicate(
            f"bagua {next(self.world.duplicates)} {self.name}"
        )
        nodes = self.world.nodes
        if nodes is None:
            hosts = whole.gather_bytes(socket.gethostname().encode())
            nodes = [[r for r, h in enumerate(hosts) if h == x] for x in dict.fromkeys(hosts)]
        return Hierarchy(whole, nodes)

    def register_ordered_buckets(self, buckets: Sequence[OrderedBucket]) -> None:
        """Replace the buckets; those under way are waited for first. All ranks do it together.

        Args:
            buckets: The buckets, in the order in which they will always be communicated.

        Raises:
            ArgumentError: If two tensors have the same name or the same memory.
            DataParallelError: If a bucket has nothing but padding.
        """
        if self._thread is None:
            deadline = self.hierarchy.whole.deadline
            self._thread = CommThread(
                f"bagua-{self.name}", deadline=deadline, alarm=self.world.alarm
            )
        self.wait_pending_comm_ops()
        self._refuse_shared(buckets)
        bucket_of = {
            id(tensor): bucket
            for bucket in buckets
            for tensor in bucket.handles
            if not tensor.name.startswith(PADDING)
        }
        for bucket in buckets:
            if bucket not in bucket_of.values():
                raise DataParallelError(f"backend {self.name}: bucket {bucket.name} is empty")
        with self._lock:
            self._ring, self._bucket_of = deque(buckets), bucket_of
            self._waits = {id(bucket): {} for bucket in buckets}

    def _refuse_shared(self, buckets: Sequence[OrderedBucket]) -> None:
        names: dict[str, str] = {}
        places: dict[int, str] = {}
        problems: list[str] = []
        for tensor in itertools.chain.from_iterable(bucket.handles for bucket in buckets):
            place = -1 if tensor.copies else tensor.data_ptr()
            if tensor.name in names:
                problems.append(f"name {tensor.name!r} twice")
            elif place >= 0 and place in places and tensor.num_elements():
                problems.append(f"{tensor.name!r} in the memory of {places[place]!r}")
            names[tensor.name] = places[place] = tensor.name
        if problems:
            raise ArgumentError(
                where=f"register_ordered_buckets of {self.name}",
                found="; ".join(problems),
                wanted="tensors with names and memory of their own",
            )

    def mark_communication_ready(self, tensor: BackendTensor, before: Wait | None) -> None:
        """Note that a tensor may be communicated, and send off every bucket whose turn it is.

        Args:
            tensor: The tensor.
            before: Called on the communication thread first, to wait for the values; None if they
                are there.

        Raises:
            ArgumentError: If no buckets were registered.
            DataParallelError: If no registered bucket has the tensor.
        """
        if tensor.name.startswith(PADDING):
            return
        if self._thread is None:
            raise ArgumentError(
                where=f"marking Bagua tensor {tensor.name!r} ready",
                found=f"model {self.name} without buckets",
                wanted="buckets given to register_ordered_buckets before",
            )
        key = id(tensor.registered)
        with self._lock:
            bucket = self._bucket_of.get(key)
            if bucket is None:
                raise DataParallelError(
                    f"backend {self.name}: tensor {tensor.name!r} is in no registered bucket"
                )
            self._waits[id(bucket)][key] = before
            while self._ring and self._is_ready(self._ring[0]):
                first = self._ring[0]
                self._ring.rotate(-1)
                waits = tuple(self._waits[id(first)].values())
                self._waits[id(first)] = {}
                name = f"bucket {first.name} of {self.name}"
                do = functools.partial(_communicate, first, waits)
                self._pending.append(self._thread.submit(name, do))

    def _is_ready(self, bucket: OrderedBucket) -> bool:
        members = [h for h in bucket.handles if not h.name.startswith(PADDING)]
        return len(self._waits[id(bucket)]) == len(members)

    def wait_pending_comm_ops(self) -> int:
        """Wait until every bucket that was sent off is communicated.

        Returns:
            How many that were since the last time.

        Raises:
            DataParallelError: If one failed; the error names rank and bucket.
        """
        if self._thread is None:
            return 0
        with self._lock:
            todo, self._pending = self._pending, []
        self._thread.finish(todo)
        return len(todo)


def _communicate(bucket: OrderedBucket, waits: Sequence[Wait | None]) -> None:
    for wait in waits:
        if wait is not None:
            wait()
    bucket.run_ops()


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
