"""BaguaBucket: tensors that are communicated together, and what is done with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from emulator.replicas.comm.errors import DataParallelError
from samba.distributed.bagua.operations import (
    AsynchronousModelAverageOp,
    CentralizedSynchronousOp,
    DecentralizedSynchronousOp,
    LowPrecisionDecentralizedSynchronousOp,
    Operation,
    PythonOp,
)
from samba.distributed.bagua.world import PADDING, BaguaBackend
from samba.errors import ArgumentError
from samba.support.given import whole_of
from samba.tensor.bagua import bagua_set_storage, handle_of, register
from samba.tensor.bagua_handle import BackendTensor, dtype_name
from samba.tensor.views import view_detached, view_flat_as_numpy


class BucketError(DataParallelError):
    """An operation of a bucket failed.

    Attributes:
        rank: Where.
        bucket: Name of the bucket.
        reason: What went wrong.
    """

    def __init__(
        self, *, rank: int, bucket: str, module: str, reason: str, ranks: Sequence[int]
    ) -> None:
        self.rank, self.bucket, self.reason = rank, bucket, reason
        super().__init__(f"rank {rank}: bucket {bucket} of {module}: {reason}", ranks=ranks)


class BaguaBucket:
    """Tensors of one model, one type and one device that are communicated together.

    Args:
        tensors: Bagua tensors with a module.
        name: Name of the bucket, unique in the module.
        flatten: Move the effective tensors into one piece of memory, so that nothing is copied
            when they are communicated. Tensors of a device stay where they are, and so do all
            where one is not contiguous, such as a weight in channels-last order: it keeps its
            memory format.
        alignment: The number of elements is filled up to a multiple of it, with zeros.

    Raises:
        ArgumentError: If there are no tensors, or they differ in module, type or device; all
            differences are named.

    Example:
        >>> from samba.tensor.bagua import ensure_bagua_tensor
        >>> t = ensure_bagua_tensor(torch.ones(3), "t", "model")
        >>> bucket = BaguaBucket([t], "first", alignment=4)
        >>> bucket.flattened_tensor()
        tensor([1., 1., 1., 0.])
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        name: str,
        flatten: bool = True,
        alignment: int = 1,
    ) -> None:
        self.name, self.tensors = name, list(tensors)
        if not self.tensors:
            raise ArgumentError(
                where=f"BaguaBucket {name}", found="no tensors", wanted="at least one tensor"
            )
        whole_of(alignment, f"BaguaBucket {name}, alignment", 1)
        handles = [handle_of(t) for t in self.tensors]
        effective = [h.effective() for h in handles]
        facts = {
            "module": [str(h.module_name) for h in handles],
            "type": [str(t.dtype) for t in effective],
            "device": [str(t.device) for t in effective],
        }
        different = [
            f"{what} {', '.join(dict.fromkeys(values))}"
            for what, values in facts.items()
            if len(set(values)) > 1
        ]
        backend = handles[0].backend
        if different or not isinstance(backend, BaguaBackend):
            raise ArgumentError(
                where=f"BaguaBucket {name}",
                found="; ".join(different) or "tensors without a module",
                wanted="Bagua tensors of one module, one type and one device",
            )
        self.backend = backend
        self.module_name = self.backend.name
        self.operations: list[Operation] = []
        missing = -sum(t.numel() for t in effective) % alignment
        self.padding: torch.Tensor | None = None
        if missing:
            like = effective[0]
            self.padding = register(
                torch.zeros(missing, dtype=like.dtype, device=like.device),
                f"{PADDING}_bucket_{name}",
                self.module_name,
            )
            handles.append(handle_of(self.padding))
        self.handles: tuple[BackendTensor, ...] = tuple(handles)
        self._flat: torch.Tensor | None = None
        movable = not any(h.copies for h in self.handles)
        if flatten and movable and all(t.is_contiguous() for t in effective):
            self._flatten()

    @property
    def numel(self) -> int:
        """Number of elements, padding included."""
        return sum(h.num_elements() for h in self.handles)

    @property
    def dtype(self) -> str:
        """Type of the elements, as the backend calls it."""
        return dtype_name(self.handles[0].effective(), self.name)

    def _flatten(self) -> None:
        self._flat = self.flattened_tensor()
        offset = 0
        for tensor in [*self.tensors, *([] if self.padding is None else [self.padding])]:
            count = handle_of(tensor).num_elements()
            bagua_set_storage(tensor, self._flat.untyped_storage(), offset)
            offset += count

    def flattened_tensor(self) -> torch.Tensor:
        """A new flat tensor with the values of all tensors, padding included."""
        return torch.cat([view_detached(h.effective()).reshape(-1) for h in self.handles])

    def check_flatten(self) -> bool:
        """Whether the effective tensors still lie one after the other, where they were put."""
        if self._flat is None:
            return False
        place = self._flat.data_ptr()
        for handle in self.handles:
            tensor = handle.effective()
            moved = tensor.numel() and tensor.data_ptr() != place
            if moved or not tensor.is_contiguous():
                return False
            place += tensor.numel() * tensor.element_size()
        return True

    def values(self) -> np.ndarray:
        """All values as one flat array, for reading: the tensors' own memory or a copy."""
        if self._flat is not None and self.check_flatten():
            return view_flat_as_numpy(self._flat)
        return view_flat_as_numpy(self.flattened_tensor())

    @contextlib.contextmanager
    def buffer(self) -> Iterator[np.ndarray]:
        """All values as one flat array; what is written there is the tensors' at the end."""
        if self._flat is not None and self.check_flatten():
            yield view_flat_as_numpy(self._flat)
            return
        parts = [view_detached(h.effective()).reshape(-1) for h in self.handles]
        flat = torch.cat(parts)
        yield view_flat_as_numpy(flat)
        values = flat.split([part.numel() for part in parts])
        for handle, value in zip(self.handles, values, strict=True):
            handle.assign(value)

    # -- operations -----------------------------------------------------------

    def append_centralized_synchronous_op(
        self,
        hierarchical: bool = False,
        average: bool = True,
        scattergather: bool = False,
        compression: str | None = None,
    ) -> BaguaBucket:
        """Let all ranks' values become their mean, or their sum.

        Args:
            hierarchical, average, scattergather, compression: As :class:`CentralizedSynchronousOp`
                has them.

        Returns:
            The bucket.
        """
        self.operations.append(
            CentralizedSynchronousOp(
                hierarchical=hierarchical,
                average=average,
                scattergather=scattergather,
                compression=compression,
            )
        )
        return self

    def append_decentralized_synchronous_op(
        self,
        peer_weight: torch.Tensor,
        hierarchical: bool = True,
        peer_selection_mode: str = "all",
    ) -> DecentralizedSynchronousOp:
        """Average with peers into ``peer_weight``.

        Args:
            peer_weight, hierarchical, peer_selection_mode: As :class:`DecentralizedSynchronousOp`
                has them.

        Returns:
            The operation; its ``copy_back_peer_weight`` puts the result into the bucket.
        """
        self._check_sizes("append_decentralized_synchronous_op", peer_weight)
        op = DecentralizedSynchronousOp(
            peer_weight=peer_weight,
            hierarchical=hierarchical,
            peer_selection_mode=peer_selection_mode,
        )
        self.operations.append(op)
        return op

    def append_low_precision_decentralized_synchronous_op(
        self,
        weight: torch.Tensor,
        left_peer_weight: torch.Tensor,
        right_peer_weight: torch.Tensor,
        hierarchical: bool = True,
        compression: str = "MinMaxUInt8",
    ) -> BaguaBucket:
        """Exchange compressed changes with two neighbours in a ring.

        Args:
            weight, left_peer_weight, right_peer_weight, hierarchical: As
                :class:`LowPrecisionDecentralizedSynchronousOp` has them.
            compression: ``"MinMaxUInt8"``.

        Returns:
            The bucket.
        """
        where = "append_low_precision_decentralized_synchronous_op"
        if compression != "MinMaxUInt8":
            raise ArgumentError(where=where, found=repr(compression), wanted="'MinMaxUInt8'")
        self._check_sizes(where, weight, left_peer_weight, right_peer_weight)
        self.operations.append(
            LowPrecisionDecentralizedSynchronousOp(
                weight=weight,
                left_peer_weight=left_peer_weight,
                right_peer_weight=right_peer_weight,
                hierarchical=hierarchical,
            )
        )
        return self

    def append_asynchronous_model_average_op(
        self, peer_selection_mode: str = "all"
    ) -> AsynchronousModelAverageOp:
        """Average the weights while they are trained; see :class:`AsynchronousModelAverageOp`.

        Args:
            peer_selection_mode: ``"all"``.

        Returns:
            The operation, with the lock of the weights.
        """
        if peer_selection_mode != "all":
            raise ArgumentError(
                where="append_asynchronous_model_average_op",
                found=repr(peer_selection_mode),
                wanted="'all'",
            )
        op = AsynchronousModelAverageOp()
        self.operations.append(op)
        return op

    def append_python_op(self, python_function: Callable[[str], object]) -> BaguaBucket:
        """Call a function on the communication thread; what it raises reaches whoever waits.

        Args:
            python_function: Takes the bucket's name.

        Returns:
            The bucket.
        """
        self.operations.append(PythonOp(function=python_function))
        return self

    def clear_ops(self) -> BaguaBucket:
        """Forget all operations.

        Returns:
            The bucket.
        """
        self.operations.clear()
        return self

    def run_ops(self) -> None:
        """Do the operations in the order in which they were appended.

        Raises:
            BucketError: If one fails.
        """
        for operation in tuple(self.operations):
            try:
                with torch.no_grad():
                    operation.run(self)
            except Exception as error:
                rank = self.backend.rank
                raise BucketError(
                    rank=rank,
                    bucket=self.name,
                    module=self.module_name,
                    reason=f"{type(error).__name__}: {error}",
                    ranks=error.ranks if isinstance(error, DataParallelError) else (rank,),
                ) from error

    def _check_sizes(self, where: str, *tensors: torch.Tensor) -> None:
        bad = [tuple(t.shape) for t in tensors if t.numel() != self.numel]
        if bad:
            raise ArgumentError(
                where=f"{where} of bucket {self.name}",
                found=f"tensors of shapes {bad}",
                wanted=f"{self.numel} elements each",
            )
