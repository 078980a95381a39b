"""The engine in one process: ranks are threads. For tests, and for trying things out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from emulator.replicas.comm.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DataParallelError,
    PeerLost,
)
from emulator.replicas.comm.protocol import Communicator, ReduceOp

T = TypeVar("T")


@dataclass(slots=True)
class _Round:
    """One collective: what each rank called it and brought along."""

    calls: dict[int, str] = field(default_factory=dict[int, str])
    brought: dict[int, Any] = field(default_factory=dict[int, Any])
    left: int = 0


class Hub:
    """Meeting point of the ranks of one communicator.

    Args:
        size: How many ranks there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._rounds: dict[int, _Round] = {}
        self._gone: dict[int, str] = {}
        self._hubs: dict[tuple[str, tuple[int, ...]], Hub] = {}

    def leave(self, rank: int, reason: str) -> None:
        """Note that a rank will not come any more, and wake the others that wait for it."""
        with self._changed:
            self._gone.setdefault(rank, reason)
            inner = list(self._hubs.items())
            self._changed.notify_all()
        for (_, ranks), hub in inner:
            if rank in ranks:
                hub.leave(ranks.index(rank), reason)

    def inner(self, name: str, ranks: tuple[int, ...]) -> Hub:
        """The hub of a group; the first to ask makes it."""
        with self._changed:
            hub = self._hubs.setdefault((name, ranks), Hub(len(ranks)))
            gone = {r: reason for r, reason in self._gone.items() if r in ranks}
        for rank, reason in gone.items():
            hub.leave(ranks.index(rank), reason)
        return hub

    def meet(self, rank: int, turn: int, call: str, brought: Any, deadline: float) -> list[Any]:
        """Bring something to a round and wait for what the others bring.

        Args:
            rank: The rank that comes.
            turn: Which round of this rank it is.
            call: The collective with its sizes; the same for all.
            brought: What to hand to the others. They may read it until the next round.
            deadline: Seconds to wait.

        Returns:
            What all brought, in the order of ranks.
        """
        until = time.monotonic() + deadline
        with self._changed:
            now = self._rounds.setdefault(turn, _Round())
            now.calls[rank], now.brought[rank] = call, brought
            self._changed.notify_all()
            while len(now.calls) < self.size:
                missing = [r for r in range(self.size) if r not in now.calls]
                gone = [r for r in missing if r in self._gone]
                if gone:
                    raise PeerLost(operation=call, reason=self._gone[gone[0]], ranks=gone)
                left = until - time.monotonic()
                if left <= 0:
                    raise CollectiveTimeout(operation=call, seconds=deadline, ranks=missing)
                self._changed.wait(left)
            now.left += 1
            if now.left == self.size:
                del self._rounds[turn]
        calls = [now.calls[r] for r in range(self.size)]
        if len(set(calls)) > 1:
            raise CollectiveMismatch(calls=calls)
        return [now.brought[r] for r in range(self.size)]


class InProcess(Communicator):
    """One rank of a :class:`Hub`.

    Args:
        hub: Their meeting point.
        rank: Which of them this is.
        deadline: Seconds that a collective may take.
    """

    engine = "inprocess"

    def __init__(self, hub: Hub, rank: int, *, deadline: float = 60.0) -> None:
        super().__init__(rank=rank, size=hub.size, deadline=deadline)
        self._hub = hub
        self._turn = 0

    def _meet(self, call: str, brought: Any) -> list[Any]:
        self._turn += 1
        return self._hub.meet(self.rank, self._turn, call, brought, self.deadline)

    def all_reduce(self, buffer: np.ndarray, op: ReduceOp = ReduceOp.SUM) -> None:
        parts = self._meet(f"all_reduce {op.value} {_form(buffer)}", buffer.copy())
        buffer[:] = reduce_in_order(parts, op)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        brought = buffer.copy() if self.rank == root else None
        buffer[:] = self._meet(f"broadcast from {root} {_form(buffer)}", brought)[root]

    def all_gather(self, out: np.ndarray, part: np.ndarray) -> None:
        out[:] = np.concatenate(self._meet(f"all_gather {_form(part)}", part.copy()))

    def all_to_all(self, out: np.ndarray, whole: np.ndarray) -> None:
        parts = self._meet(f"all_to_all {_form(whole)}", whole.copy())
        mine = slice(self.rank * (len(whole) // self.size), None)
        out[:] = np.concatenate([p[mine][: len(whole) // self.size] for p in parts])

    def exchange(self, out: np.ndarray, part: np.ndarray, to: int, source: int) -> None:
        sent = self._meet(f"exchange {_form(part)}", (to, part.copy()))
        target, data = sent[source]
        if target != self.rank:
            raise DataParallelError(
                f"exchange: rank {self.rank} waits for rank {source}, which sends to {target}",
                ranks=(source,),
            )
        out[:] = data

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self._meet("gather_bytes", data)

    def split(self, groups: Sequence[Sequence[int]], name: str) -> Communicator | None:
        self._meet(f"split {name}", None)
        for group in groups:
            ranks = tuple(group)
            if self.rank in ranks:
                hub = self._hub.inner(name, ranks)
                return InProcess(hub, ranks.index(self.rank), deadline=self.deadline)
        return None


def reduce_in_order(parts: Sequence[np.ndarray], op: ReduceOp) -> np.ndarray:
    """Reduce buffers from the first to the last, so that every rank finds the same bits."""
    total = parts[0].copy()
    for part in parts[1:]:
        if op is ReduceOp.MIN:
            np.minimum(total, part, out=total)
        elif op is ReduceOp.MAX:
            np.maximum(total, part, out=total)
        else:
            total += part
    if op is ReduceOp.MEAN:
        total /= total.dtype.type(len(parts))
    return total


def run_ranks(
    size: int, work: Callable[[Communicator], T], *, deadline: float = 60.0
) -> list[T | BaseException]:
    """Run a function once per rank, each in a thread of its own, and wait for all.

    Args:
        size: How many ranks.
        work: What a rank does with its communicator.
        deadline: Seconds that a collective may take.

    Returns:
        For each rank what its function returned, or the exception it raised.
    """
    hub = Hub(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(InProcess(hub, rank, deadline=deadline))
        except BaseException as error:
            results[rank] = error
            hub.leave(rank, f"{type(error).__name__}: {error}")
        else:
            hub.leave(rank, "it has finished")

    threads = [threading.Thread(target=run, args=(r,), name=f"rank-{r}") for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _form(buffer: np.ndarray) -> str:
    return f"{buffer.dtype.name}[{buffer.size}]"
