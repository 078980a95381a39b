"""A slow network to order, for benchmarks and tests of overlap."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from emulator.replicas.comm.protocol import Communicator, ReduceOp


class SlowLink(Communicator):
    """Another communicator, with every collective prolonged by a latency and a bandwidth.

    The time is spent asleep, as a thread waits for a network. Both settings may be changed between
    collectives; all ranks should have the same.

    Args:
        inner: The communicator that does the work.
        latency: Seconds added to each collective.
        bytes_per_second: Bandwidth, None for unlimited.

    Attributes:
        latency: Seconds added to each collective.
        bytes_per_second: Bandwidth, None for unlimited.
    """

    def __init__(
        self, inner: Communicator, *, latency: float, bytes_per_second: float | None = None
    ) -> None:
        super().__init__(rank=inner.rank, size=inner.size, deadline=inner.deadline)
        self.engine = f"slow {inner.engine}"
        self._inner = inner
        self.latency, self.bytes_per_second = latency, bytes_per_second

    def seconds(self, nbytes: int) -> float:
        """How much longer a collective over so many bytes takes."""
        rate = self.bytes_per_second
        return self.latency + (nbytes / rate if rate else 0.0)

    def _travel(self, buffer: np.ndarray) -> None:
        time.sleep(self.seconds(buffer.nbytes))

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
        inner = self._inner.split(groups, name)
        if inner is None:
            return None
        return SlowLink(inner, latency=self.latency, bytes_per_second=self.bytes_per_second)
