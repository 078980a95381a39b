"""Operations on the flat buffer of a bucket, run on the communication thread.

Sources: the algorithms of Bagua (arXiv:2107.01499), section 3, and its public documentation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from emulator.replicas.comm.errors import PeerLost
from emulator.replicas.comm.protocol import Communicator, ReduceOp
from samba.distributed.bagua.world import BaguaBackend, Hierarchy
from samba.errors import ArgumentError
from samba.tensor.compression import compress, decompress
from samba.tensor.views import view_flat_as_numpy


class BucketValues(Protocol):
    """What an operation needs of a bucket."""

    name: str
    backend: BaguaBackend

    def values(self) -> np.ndarray:
        """All values as one flat array, for reading."""
        ...

    def buffer(self) -> AbstractContextManager[np.ndarray]:
        """All values as one flat array; what is written there is the tensors' at the end."""
        ...


class Operation(Protocol):
    """An operation on a bucket."""

    def run(self, bucket: BucketValues) -> None:
        """Do the operation; called on the communication thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonOp:
    """Calls a function.

    Args:
        function: Takes the bucket's name.
    """

    function: Callable[[str], object]

    def run(self, bucket: BucketValues) -> None:
        self.function(bucket.name)


def between_peers(
    groups: Hierarchy,
    buffer: np.ndarray,
    do: Callable[[Communicator], None],
    *,
    hierarchical: bool,
) -> None:
    """Let ranks do something with a buffer; or average it on each host, and let hosts do it.

    Args:
        groups: The communicators.
        buffer: The buffer; afterwards the same on all ranks of a host if hosts are the peers.
        do: What the peers do with it.
        hierarchical: Whether hosts are the peers, each by its first rank.
    """
    if not hierarchical or groups.local is None:
        do(groups.whole)
        return
    groups.local.all_reduce(buffer, ReduceOp.MEAN)
    if groups.leaders is not None:
        do(groups.leaders)
    groups.local.broadcast(buffer)


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralizedSynchronousOp:
    """All ranks' buffers become their mean, or their sum.

    Args:
        hierarchical: Reduce on each host first. The result is the mean of all ranks, whatever
            their number on each host.
        average: The mean; the sum if False.
        scattergather: Each rank reduces a part, and the parts are gathered.
        compression: ``"MinMaxUInt8"`` sends a byte for each number; None sends numbers.
    """

    hierarchical: bool = False
    average: bool = True
    scattergather: bool = False
    compression: str | None = None

    def __post_init__(self) -> None:
        if self.compression not in (None, "MinMaxUInt8"):
            raise ArgumentError(
                where="append_centralized_synchronous_op(compression=…)",
                found=repr(self.compression),
                wanted="None or 'MinMaxUInt8'",
            )

    def run(self, bucket: BucketValues) -> None:
        groups = bucket.backend.hierarchy
        with bucket.buffer() as buffer:
            if (self.average or self.compression) and not _is_float(buffer):
                raise ArgumentError(
                    where=f"bucket {bucket.name}",
                    found=f"tensors of {buffer.dtype.name}",
                    wanted="floating point numbers to average or to compress",
                    hint="Whole numbers can be summed: average=False.",
                )
            if not self.hierarchical or groups.local is None:
                op = ReduceOp.MEAN if self.average else ReduceOp.SUM
                self._reduce(groups.whole, buffer, op)
                return
            groups.local.all_reduce(buffer)
            if groups.leaders is not None:
                if self.average:
                    # Before the sum of hosts: a mean of means is wrong where hosts differ in size.
                    buffer /= buffer.dtype.type(groups.whole.size)
                self._reduce(groups.leaders, buffer, ReduceOp.SUM)
            groups.local.broadcast(buffer)

    def _reduce(self, comm: Communicator, buffer: np.ndarray, op: ReduceOp) -> None:
        if self.compression is None and not self.scattergather:
            comm.all_reduce(buffer, op)
            return
        each = -(-buffer.size // comm.size)
        # Values of the buffer's own fill it up, so that no minimum or maximum changes.
        whole = np.pad(buffer, (0, each * comm.size - buffer.size), mode="edge")
        if self.compression is None:
            parts = np.empty_like(whole)
            comm.all_to_all(parts, whole)
            comm.all_gather(whole, _reduced(parts.reshape(comm.size, -1), op))
        else:
            _compressed_reduce(comm, whole, op)
        buffer[:] = whole[: buffer.size]


def _compressed_reduce(comm: Communicator, whole: np.ndarray, op: ReduceOp) -> None:
    rows = whole.reshape(comm.size, -1)
    sent = np.concatenate([compress(row) for row in rows])
    received = np.empty_like(sent)
    comm.all_to_all(received, sent)
    parts = np.empty(rows.shape, np.float32)
    for data, part in zip(received.reshape(comm.size, -1), parts, strict=True):
        decompress(data, part)
    mine = compress(_reduced(parts, op))
    gathered = np.empty(comm.size * mine.size, np.uint8)
    comm.all_gather(gathered, mine)
    for data, row in zip(gathered.reshape(comm.size, -1), rows, strict=True):
        decompress(data, row)


def _reduced(rows: np.ndarray, op: ReduceOp) -> np.ndarray:
    """The sum or the mean of rows, from the first to the last."""
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    if op is ReduceOp.MEAN:
        total /= total.dtype.type(len(rows))
    return total


def _is_float(buffer: np.ndarray) -> bool:
    return buffer.dtype.kind == "f" or buffer.dtype.name == "bfloat16"


PEER_MODES = ("all", "shift_one")


@dataclass(slots=True, kw_only=True, eq=False)
class DecentralizedSynchronousOp:
    """Averages with peers into another tensor, and leaves the bucket as it is.

    Args:
        peer_weight: Tensor of as many elements as the bucket, padding included; the result.
        hierarchical: Average on each host first; then hosts are the peers.
        peer_selection_mode: ``"all"`` averages over all ranks; ``"shift_one"`` over pairs that
            change from step to step, and needs an even number of ranks.
    """

    peer_weight: torch.Tensor
    hierarchical: bool = True
    peer_selection_mode: str = "all"
    step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.peer_selection_mode not in PEER_MODES:
            raise ArgumentError(
                where="append_decentralized_synchronous_op(peer_selection_mode=…)",
                found=repr(self.peer_selection_mode),
                wanted=" or ".join(map(repr, PEER_MODES)),
            )

    def run(self, bucket: BucketValues) -> None:
        groups = bucket.backend.hierarchy
        if self.peer_selection_mode == "shift_one" and self.hierarchical:
            _check_hosts(groups)
        out = view_flat_as_numpy(self.peer_weight)
        out[:] = bucket.values()
        between_peers(
            groups, out, lambda comm: self._average(comm, out), hierarchical=self.hierarchical
        )
        self.step += 1

    def _average(self, comm: Communicator, out: np.ndarray) -> None:
        if self.peer_selection_mode == "all" or comm.size == 1:
            comm.all_reduce(out, ReduceOp.MEAN)
            return
        peer = shift_one_peer(comm.rank, comm.size, self.step)
        theirs = np.empty_like(out)
        comm.exchange(theirs, out, peer, peer)
        out += theirs
        out /= out.dtype.type(2)

    def copy_back_peer_weight(self, bucket: BucketValues) -> None:
        """Put the result into the bucket's tensors.

        Args:
            bucket: The bucket.
        """
        with bucket.buffer() as buffer:
            buffer[:] = view_flat_as_numpy(self.peer_weight)


def _check_hosts(groups: Hierarchy) -> None:
    """Refuse pairs of hosts where their number is odd; on all ranks, so that none waits."""
    if groups.local is not None and groups.hosts % 2:
        raise ArgumentError(
            where="peer_selection_mode 'shift_one', hierarchical=True",
            found=f"{groups.hosts} host{'s' if groups.hosts > 1 else ''}",
            wanted="an even number of them: the ranks of a host meet first, then pairs of hosts",
            hint="With hierarchical=False ranks make the pairs.",
        )


def shift_one_peer(rank: int, size: int, step: int) -> int:
    """The rank to average with in a step: the lower half meets the upper half, shifted by one.

    Args:
        rank: The rank.
        size: How many ranks there are; even.
        step: Number of the step.

    Example:
        >>> [[shift_one_peer(r, 4, step) for r in range(4)] for step in (0, 1)]
        [[2, 3, 0, 1], [3, 2, 1, 0]]
    """
    if size % 2:
        raise ArgumentError(
            where="peer_selection_mode 'shift_one'",
            found=f"{size} ranks",
            wanted="an even number of them",
        )
    half = size // 2
    return (step + rank) % half + half if rank < half else (rank - half - step) % half


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowPrecisionDecentralizedSynchronousOp:
    """Exchanges compressed changes of the weights with both neighbours in a ring.

    With ``W`` this rank's weights as its neighbours know them, ``L`` and ``R`` those of the
    neighbours, the change is ``x + L/3 + R/3 - 5W/3``, and everybody adds its compressed form.

    Args:
        weight: ``W``, a tensor of as many elements as the bucket.
        left_peer_weight: ``L``, of the rank before.
        right_peer_weight: ``R``, of the rank after.
        hierarchical: Average on each host first; then hosts make the ring.
    """

    weight: torch.Tensor
    left_peer_weight: torch.Tensor
    right_peer_weight: torch.Tensor
    hierarchical: bool = True

    def run(self, bucket: BucketValues) -> None:
        groups = bucket.backend.hierarchy
        with bucket.buffer() as buffer:
            between_peers(
                groups,
                buffer,
                lambda comm: self._exchange(comm, buffer),
                hierarchical=self.hierarchical,
            )

    def _exchange(self, comm: Communicator, x: np.ndarray) -> None:
        tensors = self.weight, self.left_peer_weight, self.right_peer_weight
        own, left, right = map(view_flat_as_numpy, tensors)
        kind = x.dtype.type
        change = compress(x + left / kind(3) + right / kind(3) - own * kind(5 / 3))
        before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        from_left, from_right = np.empty_like(change), np.empty_like(change)
        comm.exchange(from_left, change, after, before)
        comm.exchange(from_right, change, before, after)
        delta = np.empty_like(x)
        for weights, data in ((left, from_left), (right, from_right), (own, change)):
            decompress(data, delta)
            weights += delta
        x[:] = own


class FairLock:
    """A lock that threads get in the order of asking: a busy trainer cannot keep others from it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = self._now = 0

    def __enter__(self) -> None:
        with self._changed:
            mine, self._next = self._next, self._next + 1
            self._changed.wait_for(lambda: self._now == mine)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._now += 1
            self._changed.notify_all()


_GOES_ON, _STOPS, _FAILED = 2, 1, 0


def all_go_on(comm: Communicator, *, going: bool, failed: bool = False) -> bool:
    """Whether all ranks go on averaging; each of them asks.

    Args:
        comm: The ranks.
        going: Whether this one does.
        failed: Whether it stops because of an error.

    Raises:
        PeerLost: If others stop because of an error, and this rank does not.
    """
    states = np.full(comm.size, _GOES_ON, np.int32)
    states[comm.rank] = _FAILED if failed else _GOES_ON if going else _STOPS
    comm.all_reduce(states, ReduceOp.MIN)
    lost = [rank for rank, state in enumerate(states) if state == _FAILED]
    if lost and not failed:
        reason = "an error ended it while weights were averaged"
        raise PeerLost(operation="async", reason=reason, ranks=lost)
    return bool(states.min() == _GOES_ON)


class AsynchronousModelAverageOp:
    """Adds to the weights what the mean of all ranks' weights differs from them.

    The weights may change while ranks communicate: what they have become keeps its change.
    Whoever trains holds the lock while it uses the weights.
    """

    def __init__(self) -> None:
        self._weights = FairLock()
        self._abort = threading.Event()
        self._failed = False
        self._stopped = threading.Event()

    def lock_weight(self) -> None:
        """Keep the weights as they are until they are unlocked."""
        self._weights.__enter__()

    def unlock_weight(self) -> None:
        """Let the weights change."""
        self._weights.__exit__()

    def abort(self, *, failed: bool = False) -> None:
        """Ask all ranks to stop: the next round finds it out and changes nothing.

        Args:
            failed: Whether it is an error that ends this rank: an error of the others too, then.
        """
        self._failed = failed
        self._abort.set()

    def reset(self) -> None:
        """Take part again."""
        self._failed = False
        self._abort.clear()
        self._stopped.clear()

    def get_status(self) -> bool:
        """Whether ranks still average: False after a round that a rank's abort has ended."""
        return not self._stopped.is_set()

    def run(self, bucket: BucketValues) -> None:
        comm = bucket.backend.hierarchy.whole
        if not all_go_on(comm, going=not self._abort.is_set(), failed=self._failed):
            self._stopped.set()
            return
        with self._weights:
            before = bucket.values().copy()
        mean = before.copy()
        comm.all_reduce(mean, ReduceOp.MEAN)
        with self._weights, bucket.buffer() as buffer:
            buffer += mean - before
