"""The sides that ranks, buckets and backends show to one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from emulator.replicas.comm.backend import ReadyBucket
from emulator.replicas.comm.protocol import Communicator
from samba.distributed.bagua.hierarchy import Hierarchy
from samba.tensor.bagua_handle import BackendTensor


class Ranks(Protocol):
    """The ranks that train together, as a backend sees them.

    Attributes:
        rank: Number of this rank.
        size: How many there are.
        communicator: Their communicator; each backend duplicates it.
        nodes: Ranks by host; asked of the ranks if None.
        alarm: Called while somebody waits; raises if the job has failed elsewhere.
        duplicates: Numbers for the duplicates of the communicator.
    """

    rank: int
    size: int
    communicator: Communicator
    nodes: Sequence[Sequence[int]] | None
    alarm: Callable[[str], None]
    duplicates: Iterator[int]


class OrderedBucket(ReadyBucket, Protocol):
    """A bucket, as its backend sees it."""

    @property
    def handles(self) -> Sequence[BackendTensor]:
        """The bucket's tensors, padding included."""
        ...


class BucketBackend(Protocol):
    """A backend, as operations see it."""

    @property
    def hierarchy(self) -> Hierarchy:
        """Communicators of this backend alone."""
        ...


class BucketValues(Protocol):
    """A bucket, as operations see it."""

    name: str

    @property
    def backend(self) -> BucketBackend:
        """The backend that communicates the bucket."""
        ...

    def values(self) -> np.ndarray:
        """All values as one flat array, for reading."""
        ...

    def buffer(self) -> AbstractContextManager[np.ndarray]:
        """All values as one flat array; what is written there is the tensors' at the end."""
        ...
