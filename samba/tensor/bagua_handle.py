"""The handle of a Bagua tensor: what the backend knows of it, and where backends are found."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import torch

from samba.errors import ArgumentError
from samba.support.slot import Slot
from samba.tensor.compression import Compressed, compress_tensor, decompress_tensor
from samba.tensor.views import view_detached, view_flat_as_numpy

Getter = Callable[[Any], torch.Tensor]
Setter = Callable[[Any, torch.Tensor], object]
Closures = tuple[Getter | None, Setter | None]
"""Getter and setter of an effective tensor; None for the proxy itself."""


def _nothing() -> None:
    """Nothing, as a reference to an object that is gone gives."""


_DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


class TensorBackend(Protocol):
    """The backend that communicates the tensors of one model, as the tensors see it."""

    def mark_communication_ready(
        self, tensor: BackendTensor, before: Callable[[], object] | None
    ) -> None:
        """Note that a tensor may be communicated.

        Args:
            tensor: The tensor.
            before: Called first on the thread that communicates, to wait for the values; None if
                they are there.
        """
        ...


class BackendTensor:
    """Facts that the backend asks of a tensor; its getter closure answers each question again.

    Args:
        name: Name of the tensor, unique in its module; empty if it has none.
        module_name: Name of the model it belongs to, None if it belongs to none.
        proxy: The tensor that was registered; it is not kept alive.
        getter: Gives the effective tensor; None for the proxy itself.
        setter: Replaces the effective tensor; None does nothing.
        backend: Who communicates it; None without a module.
    """

    def __init__(
        self,
        *,
        name: str,
        module_name: str | None,
        proxy: torch.Tensor,
        getter: Getter | None,
        setter: Setter | None,
        backend: TensorBackend | None,
    ) -> None:
        self.name, self.module_name, self.backend = name, module_name, backend
        self.getter, self.setter = getter, setter
        self._proxy = weakref.ref(proxy)
        self._origin: BackendTensor | None = None
        self._held: torch.Tensor | None = None
        self._holding: Callable[[], BackendTensor | None] = _nothing

    def holding(self) -> BackendTensor:
        """A handle for callers that keep nothing else: the proxy lives as long as the handle."""
        handle = self._holding()
        if handle is None:
            handle = copy.copy(self)
            handle._origin, handle._held = self, self.proxy
            self._holding = weakref.ref(handle)
        return handle

    @property
    def registered(self) -> BackendTensor:
        """The handle that buckets know: this one, or the one that it was made from."""
        return self if self._origin is None else self._origin

    @property
    def living(self) -> torch.Tensor | None:
        """The tensor that was registered, if it still exists."""
        return self._proxy()

    @property
    def proxy(self) -> torch.Tensor:
        """The tensor that was registered.

        Raises:
            ArgumentError: If it does not exist any more.
        """
        proxy = self._proxy()
        if proxy is None:
            raise ArgumentError(
                where=f"Bagua tensor {self.name!r}",
                found="a tensor that was deleted",
                wanted="one that lives as long as it is communicated",
            )
        return proxy

    def effective(self) -> torch.Tensor:
        """The tensor to communicate, as the getter closure returns it now.

        Raises:
            ArgumentError: If the closure returns no tensor.
        """
        tensor: object = self.proxy if self.getter is None else self.getter(self.proxy)
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(
                where=f"getter closure of Bagua tensor {self.name!r}",
                found=repr(tensor),
                wanted="a tensor",
                hint="If it returns .grad, call bagua_ensure_grad() first.",
            )
        return tensor

    def replace(self, tensor: torch.Tensor) -> None:
        """Make another tensor the effective one; without a setter closure nothing happens.

        Args:
            tensor: The other tensor.
        """
        if self.setter is not None:
            self.setter(self.proxy, tensor)

    def check(self) -> None:
        """Check the type of the effective tensor, unless there is none yet.

        Raises:
            ArgumentError: If it cannot be communicated.
        """
        tensor: object = self.proxy if self.getter is None else self.getter(self.proxy)
        if isinstance(tensor, torch.Tensor):
            dtype_name(tensor, self.name)

    def _write_back(self, values: torch.Tensor) -> None:
        """Replace the effective tensor of a getter that gives copies.

        Raises:
            ArgumentError: If there is no setter closure: the values would be lost.
        """
        if self.setter is None:
            raise ArgumentError(
                where=f"Bagua tensor {self.name!r}",
                found="a getter closure that returns copies, without a setter closure",
                wanted="a setter closure, passed to ensure_bagua_tensor, which writes values back",
            )
        self.replace(values)

    @property
    def copies(self) -> bool:
        """Whether the getter gives copies of memory elsewhere, which only the setter can reach."""
        return getattr(self.getter, "copies", False)

    def assign(self, values: torch.Tensor) -> None:
        """Give the effective tensor other values.

        Args:
            values: As many as it has, of its type.
        """
        if self.copies:
            self._write_back(values)
            return
        target = view_detached(self.effective())
        target.copy_(values.view(target.shape))

    def data_ptr(self) -> int:
        """Address of the effective tensor's first element."""
        return self.effective().data_ptr()

    def num_elements(self) -> int:
        """How many elements the effective tensor has."""
        return self.effective().numel()

    def num_elements_allocated(self) -> int:
        """How many elements the effective tensor's storage has room for."""
        tensor = self.effective()
        return tensor.untyped_storage().nbytes() // tensor.element_size()

    def dtype(self) -> str:
        """Type of the effective tensor's elements: f32, f16, bf16, f64, u8, i32 or i64.

        Raises:
            ArgumentError: If it is another.
        """
        return dtype_name(self.effective(), self.name)

    def device_id(self) -> int:
        """Number of the effective tensor's device; 0 for host memory."""
        return self.effective().device.index or 0

    def compress(self, method: str, n_chunks: int, target_chunk: int = -1) -> Compressed:
        """Compress the effective tensor; see :func:`samba.tensor.compression.compress_tensor`.

        Args:
            method: ``"MinMaxUInt8"``.
            n_chunks: How many equal chunks are compressed, each by itself.
            target_chunk: The one chunk to compress; all of them if -1.
        """
        return compress_tensor(self.effective(), method, n_chunks, target_chunk)

    def decompress_from(self, method: str, n_chunks: int, compressed: Compressed) -> None:
        """Fill the effective tensor with what :meth:`compress` made.

        Args:
            method: ``"MinMaxUInt8"``.
            n_chunks: How many chunks there are.
            compressed: The chunks, as many elements as the effective tensor.
        """
        tensor = self.effective()
        decompress_tensor(tensor, method, n_chunks, compressed)
        if self.copies:
            self._write_back(tensor)

    def to_numpy_f32(self) -> Any:
        """The effective tensor as a flat float32 array; shares its memory unless on a device."""
        return self._as_numpy(torch.float32)

    def to_numpy_u8(self) -> Any:
        """The effective tensor as a flat uint8 array; shares its memory unless on a device."""
        return self._as_numpy(torch.uint8)

    def _as_numpy(self, dtype: torch.dtype) -> Any:
        tensor = self.effective()
        if tensor.dtype != dtype:
            raise ArgumentError(
                where=f"Bagua tensor {self.name!r}", found=str(tensor.dtype), wanted=str(dtype)
            )
        return view_flat_as_numpy(tensor)


def dtype_name(tensor: torch.Tensor, name: str) -> str:
    """Short name of a tensor's type, as the backend calls it."""
    if tensor.dtype not in _DTYPES:
        raise ArgumentError(
            where=f"Bagua tensor {name!r}",
            found=str(tensor.dtype),
            wanted=", ".join(str(d) for d in _DTYPES),
        )
    return _DTYPES[tensor.dtype]


class TensorWorld(Protocol):
    """What a tensor needs to know of the ranks that train together."""

    @property
    def tensors(self) -> MutableMapping[tuple[str | None, str], BackendTensor]:
        """Handles of tensors by module name and name; a handle does not keep its tensor alive."""
        ...

    def backend(self, module_name: str) -> TensorBackend:
        """The backend of a model, always the same for the same name.

        Args:
            module_name: Name of the model.
        """
        ...


_provider: Slot[Callable[[], TensorWorld]] = Slot()


def provide_world(current: Callable[[], TensorWorld]) -> None:
    """Fill the slot.

    Args:
        current: Gives the world of the calling thread.
    """
    _provider.value = current


def current_world() -> TensorWorld:
    """The world of this thread, or else of this process."""
    assert _provider.value is not None  # samba.surface has filled it
    return _provider.value()
