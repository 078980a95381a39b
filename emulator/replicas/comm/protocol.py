"""The collectives that an engine offers, on flat buffers in host memory.

A buffer is a writable, contiguous, one-dimensional numpy array of any dtype the device has.
Every rank of a communicator calls the same methods in the same order with buffers of the same
sizes and dtypes; every call has the communicator's deadline. Where a call fails, the communicator
is of no use any more.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from emulator.memory.host_view import is_host_memory, writable_view
from emulator.trace_settings import wide_types


class ReduceOp(enum.Enum):
    """How the buffers of all ranks become one."""

    SUM = "sum"
    MEAN = "mean"
    """The sum, divided by the number of ranks in the buffer's own arithmetic."""
    MIN = "min"
    MAX = "max"


class Communicator(ABC):
    """A group of ranks that exchange buffers.

    Attributes:
        rank: Number of this rank.
        size: How many ranks there are.
        deadline: Seconds that a collective may take.
        engine: Name of the engine.
    """

    engine = ""

    def __init__(self, *, rank: int, size: int, deadline: float) -> None:
        self.rank, self.size, self.deadline = rank, size, deadline

    @abstractmethod
    def all_reduce(self, buffer: np.ndarray, op: ReduceOp = ReduceOp.SUM) -> None:
        """Put the reduction of all ranks' buffers into every rank's buffer, the same bits."""

    @abstractmethod
    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Put the root's buffer into every rank's buffer."""

    @abstractmethod
    def all_gather(self, out: np.ndarray, part: np.ndarray) -> None:
        """Put all ranks' parts, in the order of ranks, into every rank's ``out``."""

    @abstractmethod
    def all_to_all(self, out: np.ndarray, whole: np.ndarray) -> None:
        """Send the n-th of equal parts of ``whole`` to rank n; receive in the order of ranks."""

    @abstractmethod
    def exchange(self, out: np.ndarray, part: np.ndarray, to: int, source: int) -> None:
        """Send ``part`` to one rank and receive ``out`` from one; both may be this rank."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Bytes of every rank, of any lengths, in the order of ranks."""
        lengths = np.zeros(self.size, np.int64)
        self.all_gather(lengths, np.array([len(data)], np.int64))
        padded = np.zeros(max(1, int(lengths.max())), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = np.empty(self.size * padded.size, np.uint8)
        self.all_gather(rows, padded)
        parts = rows.reshape(self.size, -1)
        return [row[:n].tobytes() for row, n in zip(parts, lengths, strict=True)]

    @abstractmethod
    def split(self, groups: Sequence[Sequence[int]], name: str) -> Communicator | None:
        """Make communicators for groups of ranks; every rank of this one takes part.

        Args:
            groups: Disjoint groups of ranks.
            name: Unique among the splits of this communicator.

        Returns:
            The communicator of this rank's group, None if it is in none.
        """

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_reduce(np.zeros(1, np.float32))

    def duplicate(self, name: str) -> Communicator:
        """Another communicator of the same ranks, for use from another thread.

        Args:
            name: Unique among the splits of this communicator.
        """
        copy = self.split([range(self.size)], name)
        assert copy is not None  # every rank is in the one group
        return copy

    def all_reduce_device(self, array: jax.Array, op: ReduceOp = ReduceOp.SUM) -> jax.Array:
        """Reduce a flat device array that nobody else uses.

        Args:
            array: The array; it must not be used afterwards.
            op: The reduction, such as a sum.

        Returns:
            The result, in the same device memory where the engine can do that.
        """
        if is_host_memory(array):
            self.all_reduce(writable_view(array), op)
            return array
        host = np.array(array, copy=True)
        self.all_reduce(host, op)
        with wide_types():
            return cast("Any", jax).device_put(host, array.sharding)  # jax types it in part
