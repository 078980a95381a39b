"""The default engine: ``torch.distributed`` with gloo, over buffers in host memory.

It is always the one for agreements, beside torch's default process group or without it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from emulator.replicas.comm.errors import CollectiveTimeout, PeerLost
from emulator.replicas.comm.protocol import Communicator, ReduceOp
from samba.distributed.environment import Launch
from samba.distributed.stores import PrefixStore, Store

_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MEAN: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


_TAG = 0


class TorchGloo(Communicator):
    """Ranks of a gloo process group of its own.

    Args:
        group: The group; nobody else uses it.
        ranks: Its ranks, as the default group numbers them.
        deadline: Seconds that a collective may take; the group's own timeout.
        address: Where groups that are split off listen, as :func:`listening_at` takes it.
    """

    engine = "torch"

    def __init__(
        self, group: Any, ranks: Sequence[int], *, deadline: float, address: str = ""
    ) -> None:
        super().__init__(rank=group.rank(), size=len(ranks), deadline=deadline)
        self._group, self._ranks, self._address = group, tuple(ranks), address

    def _call(self, operation: str, collective: Callable[..., Any], *args: Any, **kw: Any) -> None:
        try:
            collective(*args, group=self._group, **kw)
        except RuntimeError as error:
            text = str(error).strip().splitlines()
            reason = text[0] if text else type(error).__name__
            if "imed out" in reason:
                raise CollectiveTimeout(operation=operation, seconds=self.deadline) from error
            raise PeerLost(operation=operation, reason=reason) from error

    def all_reduce(self, buffer: np.ndarray, op: ReduceOp = ReduceOp.SUM) -> None:
        tensor = as_torch(buffer)
        self._call("all_reduce", dist.all_reduce, tensor, op=_OPS[op])
        if op is ReduceOp.MEAN:
            tensor.div_(self.size)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        self._call("broadcast", dist.broadcast, as_bytes(buffer), group_src=root)

    def all_gather(self, out: np.ndarray, part: np.ndarray) -> None:
        parts = list(as_bytes(out).chunk(self.size)) if part.size else []
        if parts:
            self._call("all_gather", dist.all_gather, parts, as_bytes(part))

    def all_to_all(self, out: np.ndarray, whole: np.ndarray) -> None:
        self._call("all_to_all", dist.all_to_all_single, as_bytes(out), as_bytes(whole))

    def exchange(self, out: np.ndarray, part: np.ndarray, to: int, source: int) -> None:
        if to == source == self.rank:
            out[:] = part
            return
        self._call(
            "exchange",
            _send_and_receive,
            as_bytes(out),
            as_bytes(part),
            to=to,
            source=source,
        )

    def barrier(self) -> None:
        # gloo's own: ceil(log2(size)) messages a rank, where its all-reduce is a ring.
        self._call("barrier", _meet)

    def split(self, groups: Sequence[Sequence[int]], name: str) -> Communicator | None:
        mine = None
        for group in groups:
            ranks = [self._ranks[r] for r in group]
            process_group = new_group(ranks, self.deadline, self._address)
            if self.rank in group:
                mine = TorchGloo(
                    process_group, ranks, deadline=self.deadline, address=self._address
                )
        return mine


def _meet(group: Any) -> None:
    group.barrier().wait()


def _send_and_receive(
    out: torch.Tensor, part: torch.Tensor, *, to: int, source: int, group: Any
) -> None:
    # The group's own methods: torch's functions refuse a group that it does not know of.
    sending = group.send([part], to, _TAG)
    group.recv([out], source, _TAG).wait()
    sending.wait()


def new_group(ranks: Sequence[int], deadline: float, address: str = "") -> Any:
    """A gloo group whose collectives have a deadline; every process of the job calls this.

    Args:
        ranks: Its ranks.
        deadline: Seconds.
        address: Where this process listens for the others, as :func:`listening_at` takes it.
    """
    with listening_at(address):
        return dist.new_group(list(ranks), timeout=timedelta(seconds=deadline), backend="gloo")


def control_beside_torch(
    store: Store, launch: Launch, hostname: str, deadline: float
) -> Communicator:
    """Set up torch's default process group, and a communicator of a group of its own.

    Args:
        store: Where the processes meet.
        launch: Which of them this is.
        hostname: Where it listens for the others, as ``listening_at`` takes it.
        deadline: Seconds that a collective may take.
    """
    with listening_at(hostname):
        dist.init_process_group(
            "gloo",
            store=PrefixStore("pg", store),
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=deadline),
        )
    return control_of_all(hostname, deadline)


def control_of_all(hostname: str, deadline: float) -> Communicator:
    """A communicator of all processes of torch's default group, which is up.

    Args:
        hostname, deadline: As for :func:`control_beside_torch`.
    """
    ranks = range(dist.get_world_size())
    group = new_group(ranks, deadline, hostname)
    return TorchGloo(group, ranks, deadline=deadline, address=hostname)


def lone_control(store: Store, launch: Launch, hostname: str, deadline: float) -> Communicator:
    """A communicator without torch's default group, which scripts take for one of replicas.

    Args:
        store, launch, hostname, deadline: As for :func:`control_beside_torch`.
    """
    module: Any = dist.distributed_c10d
    with listening_at(hostname):
        group = module.ProcessGroupGloo(
            PrefixStore("pg", store), launch.rank, launch.size, timedelta(seconds=deadline)
        )
    return TorchGloo(group, range(launch.size), deadline=deadline, address=hostname)


_choosing = threading.Lock()


@contextmanager
def listening_at(address: str) -> Iterator[None]:
    """Let gloo groups that are made inside listen at one address.

    Args:
        address: Numeric address of this host; empty for what ``GLOO_SOCKET_IFNAME`` or else the
            host's name means to gloo.
    """
    if not address:
        yield
        return
    # gloo takes options, but neither init_process_group nor new_group hands any on to it.
    backend: Any = dist.ProcessGroupGloo

    class Listening(backend):  # torch asks for its class
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = backend._Options()
            options._devices = [backend.create_device(hostname=address)]
            options._threads = 2  # as torch has it, for each device
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    module: Any = dist.distributed_c10d
    with _choosing:
        module.ProcessGroupGloo = Listening
        try:
            yield
        finally:
            module.ProcessGroupGloo = backend


def as_torch(buffer: np.ndarray) -> torch.Tensor:
    """A numpy buffer as a tensor for a collective, in the same memory, bfloat16 included."""
    if buffer.dtype.name == "bfloat16":  # numpy has no such type of its own
        return _lend(buffer.view(np.uint16)).view(torch.bfloat16)
    return _lend(buffer.view(np.uint8) if buffer.dtype == np.bool_ else buffer.view())


def as_bytes(buffer: np.ndarray) -> torch.Tensor:
    """A numpy buffer as a tensor of bytes for a collective, in the same memory."""
    return _lend(buffer.view(np.uint8))


_lent: list[weakref.ref[np.ndarray]] = []
"""Views that a gloo thread may still hold."""
_lending = threading.Lock()
"""Several threads communicate, each with groups of its own."""


def _lend(view: np.ndarray) -> torch.Tensor:
    with _lending:
        _lent[:] = [*(r for r in _lent if r() is not None), weakref.ref(view)]
    return torch.from_numpy(view)


def settle(seconds: float) -> bool:
    """Wait until gloo's threads have let go of the memory of the last collectives.

    They do so a moment after they have told of the end, and need the interpreter's lock for it:
    asked for when the interpreter ends, it would abort the process.

    Args:
        seconds: How long to wait.

    Returns:
        Whether they have.
    """
    end = time.monotonic() + seconds
    while any(r() is not None for r in _lent):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
