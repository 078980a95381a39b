"""The backend of one model: its buckets, its communication thread and its communicators."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from emulator.replicas.comm.backend import Backend
from emulator.replicas.comm.worker import CommThread
from samba.distributed.bagua.hierarchy import Hierarchy
from samba.distributed.bagua.protocols import OrderedBucket, Ranks
from samba.errors import ArgumentError
from samba.tensor.bagua_handle import BackendTensor

PADDING = "bagua_padding_tensor"
"""Tensors whose names begin so are always ready."""


class BaguaBackend:
    """Communicates the buckets of one model in the order in which they were registered.

    Args:
        name: Name of the model.
        world: The ranks.
    """

    def __init__(self, name: str, world: Ranks) -> None:
        self.name, self.world = name, world
        self.rank, self.size = world.rank, world.size
        self._hierarchy: Hierarchy | None = None
        self._inner: Backend | None = None

    @property
    def hierarchy(self) -> Hierarchy:
        """Communicators of this backend alone; the first use is a meeting of all ranks."""
        if self._hierarchy is None:
            whole = self.world.communicator.duplicate(
                f"bagua {next(self.world.duplicates)} {self.name}"
            )
            nodes = self.world.nodes
            if nodes is None:
                hosts = whole.gather_bytes(socket.gethostname().encode())
                nodes = [[r for r, h in enumerate(hosts) if h == x] for x in dict.fromkeys(hosts)]
            self._hierarchy = Hierarchy(whole, nodes)
        return self._hierarchy

    def register_ordered_buckets(self, buckets: Sequence[OrderedBucket]) -> None:
        """Replace the buckets; those under way are waited for first. All ranks do it together.

        Args:
            buckets: The buckets, in the order in which they will always be communicated.

        Raises:
            ArgumentError: If two tensors have the same name or the same memory.
            DataParallelError: If a bucket is empty.
        """
        if self._inner is None:
            deadline = self.hierarchy.whole.deadline
            thread = CommThread(f"bagua-{self.name}", deadline=deadline, alarm=self.world.alarm)
            self._inner = Backend(self.name, thread)
        self._inner.wait_pending_comm_ops()
        names: dict[str, str] = {}
        places: dict[int, str] = {}
        problems = []
        for bucket in buckets:
            for tensor in bucket.handles:
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
        self._inner.register_ordered_buckets(buckets)

    def mark_communication_ready(
        self, tensor: BackendTensor, before: Callable[[], object] | None
    ) -> None:
        """Note that a tensor may be communicated, and send off every bucket whose turn it is.

        Args:
            tensor: The tensor.
            before: Called on the communication thread first, to wait for the values.
        """
        if tensor.name.startswith(PADDING):
            return
        if self._inner is None:
            raise ArgumentError(
                where=f"marking Bagua tensor {tensor.name!r} ready",
                found=f"model {self.name} without buckets",
                wanted="buckets given to register_ordered_buckets before",
            )
        self._inner.mark_communication_ready(tensor.registered, before)  # pyright: ignore[reportArgumentType]  # what it returns is not used

    def wait_pending_comm_ops(self) -> int:
        """Wait until every bucket that was sent off is communicated.

        Returns:
            How many that were since the last time.

        Raises:
            DataParallelError: If one failed; the error names rank and bucket.
        """
        return 0 if self._inner is None else self._inner.wait_pending_comm_ops()
