"""Buckets in a fixed order: Bagua's rule of when a bucket is communicated.

Tensors become ready in any order, different ones on different ranks. Buckets leave strictly in
the order in which they were registered, around and around, so that all ranks always meet in the
same collective. (Collectives in different orders give wrong sums without any error.)
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from emulator.replicas.comm.errors import DataParallelError
from emulator.replicas.comm.worker import CommThread, Work


class ReadyTensor(Protocol):
    """A tensor of a bucket, as the backend sees it."""

    name: str


class ReadyBucket(Protocol):
    """A bucket, as the backend sees it."""

    name: str

    def members(self) -> Sequence[ReadyTensor]:
        """The tensors that must be marked before it leaves."""
        ...

    def run_ops(self) -> None:
        """Communicate it; called on the communication thread."""
        ...


class Backend:
    """Schedules the buckets of one model.

    Args:
        name: Name of the model.
        thread: The thread that communicates.
    """

    def __init__(self, name: str, thread: CommThread) -> None:
        self.name, self.thread = name, thread
        self._lock = threading.Lock()
        self._ring: deque[ReadyBucket] = deque()
        self._bucket_of: dict[int, ReadyBucket] = {}
        self._waits: dict[int, dict[int, Callable[[], None] | None]] = {}
        self._pending: list[Work] = []

    def register_ordered_buckets(self, buckets: Sequence[ReadyBucket]) -> None:
        """Replace the buckets; those under way are waited for first.

        Args:
            buckets: Buckets in the order in which they will always be communicated.

        Raises:
            DataParallelError: If a bucket is empty, or a tensor or name is in two of them.
        """
        self.wait_pending_comm_ops()
        seen: set[int] = set()
        names: set[str] = set()
        for bucket in buckets:
            members = bucket.members()
            if not members:
                raise DataParallelError(f"backend {self.name}: bucket {bucket.name} is empty")
            for tensor in members:
                if id(tensor) in seen or tensor.name in names:
                    raise DataParallelError(
                        f"backend {self.name}: tensor {tensor.name!r} is registered twice; every "
                        "tensor belongs to one bucket and has a name of its own"
                    )
                seen.add(id(tensor))
                names.add(tensor.name)
        with self._lock:
            self._ring = deque(buckets)
            self._bucket_of = {id(t): b for b in buckets for t in b.members()}
            self._waits = {id(b): {} for b in buckets}

    def mark_communication_ready(
        self, tensor: ReadyTensor, before: Callable[[], None] | None = None
    ) -> None:
        """Note that a tensor may be communicated, and send off every bucket whose turn it is.

        Args:
            tensor: The tensor.
            before: Called on the communication thread before its bucket is touched, to wait for
                the tensor's values; None if they are there.

        Raises:
            DataParallelError: If no registered bucket has the tensor.
        """
        with self._lock:
            bucket = self._bucket_of.get(id(tensor))
            if bucket is None:
                raise DataParallelError(
                    f"backend {self.name}: tensor {tensor.name!r} is in no registered bucket"
                )
            self._waits[id(bucket)][id(tensor)] = before
            while self._ring:
                first = self._ring[0]
                waits = self._waits[id(first)]
                if len(waits) < len(first.members()):
                    break
                self._ring.rotate(-1)
                self._waits[id(first)] = {}
                do = functools.partial(_communicate, first, tuple(waits.values()))
                name = f"bucket {first.name} of {self.name}"
                self._pending.append(self.thread.submit(name, do))

    def wait_pending_comm_ops(self) -> int:
        """Wait until everything that was sent off is communicated.

        Returns:
            How many buckets that were.

        Raises:
            DataParallelError: If one failed, or took too long.
        """
        with self._lock:
            todo, self._pending = self._pending, []
        self.thread.finish(todo)
        return len(todo)


def _communicate(bucket: ReadyBucket, waits: Sequence[Callable[[], None] | None]) -> None:
    for wait in waits:
        if wait is not None:
            wait()
    bucket.run_ops()
