"""A slow network to order, for benchmarks and tests of overlap."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from emulator.comm.protocol import Communicator, ReduceOp


class SlowLink(Communicator):
    """Another communicator, with every collective prolonged by a latency and a bandwidth.

    Args:
        inner: Who really communicates.
        latency: Seconds added to each collective.
        bytes_per_second: Bandwidth, None for unlimited.
    """

    def __init__(
        self, inner: Communicator, *, latency: float, bytes_per_second: float | None = None
    ) -> None:
        super().__init__(rank=inner.rank, size=inner.size, deadline=inner.deadline)
        self.engine = f"slow {inner.engine}"
        self._inner, self._latency, self._rate = inner, latency, bytes_per_second

    def _travel(self, buffer: np.ndarray) -> None:
        time.sleep(self._latency + (buffer.nbytes / self._rate if self._rate else 0.0))

    def all_reduce(self, buffer: np.ndarray, op: ReduceOp = ReduceOp.SUM) -> None:
        self._travel(buffer)
        self._inner.all_reduce(buffer, op)

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        self._travel(buffer)
        self._inner.broadcast(buffer, root)

    def all_gather(self, out: np.ndarray, part: np.ndarray) -> None:
        self._travel(out)
        self._inner.all_gather(out, part)

    def all_to_all(self, out: np.ndarray, whole: np.ndarray) -> None:
        self._travel(whole)
        self._inner.all_to_all(out, whole)

    def exchange(self, out: np.ndarray, part: np.ndarray, to: int, source: int) -> None:
        self._travel(part)
        self._inner.exchange(out, part, to, source)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self._inner.gather_bytes(data)

    def split(self, groups: Sequence[Sequence[int]], name: str) -> Communicator | None:
        made = self._inner.split(groups, name)
        if made is None:
            return None
        return SlowLink(made, latency=self._latency, bytes_per_second=self._rate)
