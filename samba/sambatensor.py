"""SambaTensor: a torch tensor with a name, and a door to the device memory of that name."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pef_schema.printable import one_line
from samba.errors import ArgumentError, ConversionError, NoAutograd, described
from samba.support.given import flag_of, sizes_of
from samba.tensor.bagua import BaguaTensor
from samba.tensor.conversions import Conversions, integral
from samba.tensor.device_memory import DeviceMemory
from samba.tensor.dispatch import array_function, array_ufunc, dispatch
from samba.tensor.host_memory import Materializer
from samba.tensor.host_use import note_use
from samba.tensor.lazy_mode import traced_forward
from samba.tensor.recipe import empty_data
from samba.tensor.recording import alias
from samba.tensor.views import host_of

__all__ = ["DimInfo", "Materializer", "SambaTensor", "from_torch_tensor", "to_torch"]

# Inside the class ``torch`` is a method, so annotations there need other names.
DType = torch.dtype


class DimInfo:
    """Range of a dimension whose size may vary: ``min`` to ``max`` in steps of ``factor``."""

    def __init__(self, min: int, max: int, factor: int = 1) -> None:
        self.min = min
        self.max = max
        self.factor = factor

    def __repr__(self) -> str:
        return f"DimInfo(min={self.min}, max={self.max}, factor={self.factor})"


class SambaTensor(DeviceMemory, Conversions, BaguaTensor, Tensor):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]  # see the mixins
    """A torch tensor that has a name on the device.

    It shares memory with the tensor it is made from and behaves as that tensor in every torch
    function; results are SambaTensors again. Casts keep the names. Its ``data``, ``grad`` and
    ``requires_grad`` are those of that tensor, which ``torch()`` gives back.

    Args:
        torch_tensor: Source. None makes an empty SambaTensor of ``shape`` and ``dtype``.
        shape: Sizes of an empty SambaTensor; not together with ``torch_tensor``.
        dtype: Element type of an empty SambaTensor, torch's default if None; not together with
            ``torch_tensor``.
        name: Name on the device.
        batch_dim: Index of the batch dimension; recorded only.
        named_dims: One label or None a dimension; recorded only.
        sized_dims: One name of a dynamic dimension or None a dimension; recorded only.
        materializer: Makes the values of an empty SambaTensor. It is called with the tensor,
            with the tensor and a ``samba.tensor.rng.MultithreadedRNG``, or with the keywords
            ``shape``, ``dtype`` and ``requires_grad``, whichever its signature takes.
        is_complex: Whether the last dimension holds real and imaginary parts; recorded only.
        region_name: Name of its place in device memory. Tensors with the same region share it.

    Raises:
        ConversionError: ``torch_tensor`` is not a tensor.
        ArgumentError: ``shape`` or ``dtype`` come with ``torch_tensor``, or none of them is given.

    Example:
        >>> import torch
        >>> image = SambaTensor(torch.zeros(2, 3), name="image", batch_dim=0)
        >>> image.bfloat16().sn_name
        'image'
        >>> SambaTensor(shape=(4, 5), dtype=torch.bfloat16).has_data
        False
    """

    def __new__(
        cls,
        torch_tensor: Tensor | None = None,
        shape: Iterable[int] | None = None,
        dtype: DType | None = None,
        name: str | None = None,
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        materializer: Materializer | None = None,
        is_complex: bool | None = None,
        region_name: str | None = None,
    ) -> SambaTensor:
        forward = traced_forward()
        if forward is not None:
            return forward.made(  # pyright: ignore[reportReturnType]  # the traced tensor itself
                torch_tensor,
                {
                    "name": name,
                    "region_name": region_name,
                    "batch_dim": batch_dim,
                    "named_dims": named_dims,
                    "sized_dims": sized_dims,
                },
            )
        self = _share(cls, _source(cls, torch_tensor, shape, dtype))
        if torch_tensor is None or not getattr(torch_tensor, "_has_data", True):
            self._has_data = False
        else:
            vars(self)["_underlying"] = host_of(torch_tensor)
        self._label(name, batch_dim, named_dims, sized_dims, region_name)
        if materializer is not None:
            self.materializer = materializer
        if is_complex is not None:
            self._declared_complex = flag_of(is_complex, f"{cls.__name__}(is_complex=...)")
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return dispatch(SambaTensor, func, args, kwargs or {})

    def _empty_alias(self) -> SambaTensor:
        return alias(SambaTensor, self)

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Runs torch's autograd on the host from this tensor; see ``torch.Tensor.backward``.

        Raises:
            ConversionError: ``gradient`` is not a tensor.
            ArgumentError: ``retain_graph`` is neither true nor false.
            NoAutograd: No operation on the host has made it, such as an output of ``run``.
        """
        if gradient is not None and not isinstance(gradient, Tensor):
            raise ConversionError(
                where="SambaTensor.backward(gradient)",
                found=described(gradient),
                wanted="a SambaTensor, a torch.Tensor or None",
            )
        if retain_graph is not None:
            retain_graph = flag_of(retain_graph, "SambaTensor.backward(retain_graph)")
        if not host_of(self).requires_grad:
            raise NoAutograd(name=self.sn_name or "")
        if inputs is not None:
            items = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
            inputs = [host_of(tensor) if isinstance(tensor, Tensor) else tensor for tensor in items]
        with torch._C.DisableTorchFunctionSubclass():
            Tensor.backward(host_of(self), to_torch(gradient), retain_graph, create_graph, inputs)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(integral(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(integral(index), value)

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and self._has_data:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return array_ufunc(SambaTensor, ufunc, method, *inputs, **kwargs)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return array_function(SambaTensor, func, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        shape, dims = self.shape, self.named_dims
        return (
            f"{self._values_text()}\n"
            f"samba.{type(self).__name__}(name: {one_line(self._sn_name)}, shape: {shape}, "
            f"dtype: {self.dtype},\n"
            f"batch_dim: {self._batch_dim}, named_dims: {dims}, keep_data: {self._has_data}, "
            f"materializer_provided: {self.materializer_provided})"
        )

    def _values_text(self) -> str:
        """The values as torch prints them; shape and dtype where there are none."""
        if not self._has_data:
            return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"
        with torch._C.DisableTorchFunctionSubclass():
            return repr(host_of(self).as_subclass(torch.Tensor).detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        known = memo.get(id(self))
        if known is not None:
            return known
        note_use((self,), "deepcopy")
        if "_underlying" in vars(self):
            underlying = copy.deepcopy(host_of(self), memo)
            result = memo[id(self)] = _share(type(self), underlying)
            for key, value in vars(self).items():
                vars(result)[key] = underlying if value is host_of(self) else _own(key, value, memo)
            return result
        with torch._C.DisableTorchFunctionSubclass():
            if self._has_data:
                source = copy.deepcopy(_plain(self), memo)
            else:
                source = empty_data(self.shape, self.dtype)
            result = torch.Tensor._make_subclass(type(self), source.detach(), self.requires_grad)
        memo[id(self)] = result
        for key, value in vars(self).items():
            setattr(result, key, _own(key, value, memo))
        grad = self.grad if self.is_leaf else None
        if grad is not None:
            result.grad = copy.deepcopy(grad, memo)
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles with class and names; for ``torch.save`` as a plain tensor.

        So a saved ``state_dict()`` needs no samba to load, and ``torch.load`` takes it with
        ``weights_only=True``. Parameters are not in a ``state_dict()``, only detached tensors are;
        so they keep class and names when a whole module is saved. So does an empty tensor.
        """
        note_use((self,), "pickle")
        keeps = isinstance(self, torch.nn.Parameter) or not self._has_data
        if keeps or not _saved_by_torch(sys._getframe(1)):
            return _rebuild_reduction(self)
        with torch._C.DisableTorchFunctionSubclass():
            return _plain(self).__reduce_ex__(protocol)


def _own(key: str, value: Any, memo: dict[int, Any]) -> Any:
    """An attribute for a copy of its tensor."""
    if key != "_materializer":
        return copy.deepcopy(value, memo)
    # A materializer is code, often bound to a generator, which both tensors may call; a recipe
    # of a lazy parameter is data.
    return value.copy() if hasattr(value, "copy") else value


def _rebuild_reduction(tensor: SambaTensor) -> Any:
    """Reduction of a tensor that keeps its class, its names and its gradient flag.

    Values are its own; what made them is kept as long as there are none.
    """
    with torch._C.DisableTorchFunctionSubclass():
        data = _plain(tensor).detach() if tensor._has_data else None
        form = (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
    dropped = {"_underlying"} | ({"_materializer"} if tensor._has_data else set())
    attributes = {key: value for key, value in vars(tensor).items() if key not in dropped}
    return _rebuild, (type(tensor), data, *form, attributes)


def _saved_by_torch(frame: FrameType | None) -> bool:
    """Whether ``torch.save`` pickles a tensor: the first caller outside of Python's own pickler."""
    while frame is not None and frame.f_globals.get("__name__") == "pickle":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch.serialization"


def _rebuild(
    cls: type[SambaTensor],
    data: torch.Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
    attributes: dict[str, Any],
) -> SambaTensor:
    """Inverse of the reduction; a public name of the pickle format, so keep its arguments."""
    source = empty_data(shape, dtype) if data is None else data
    result = torch.Tensor._make_subclass(cls, source, requires_grad)
    for key, value in attributes.items():
        setattr(result, key, value)
    return result


def from_torch_tensor(
    tensor: torch.Tensor | None,
    name: str | None = None,
    batch_dim: int | None = None,
    named_dims: Iterable[str | None] | None = None,
    region_name: str | None = None,
    sized_dims: Iterable[str | None] | None = None,
) -> Any:
    """Makes a SambaTensor that shares the memory of a torch tensor.

    Gradients are those of the tensor: what is computed from the SambaTensor is computed from it.

    Args:
        tensor: The source; a SambaTensor is returned as it is, and None gives None.
        name: Name on the device.
        batch_dim: Index of the batch dimension; recorded only.
        named_dims: A label or None a dimension; recorded only.
        region_name: Name of its place in device memory.
        sized_dims: The name of a dynamic dimension or None a dimension; recorded only.

    Returns:
        A SambaTensor, or None.

    Raises:
        ConversionError: ``tensor`` is neither a tensor nor None.
    """
    if tensor is None or isinstance(tensor, SambaTensor):
        return tensor
    if type(tensor) is torch.Tensor and not tensor.requires_grad and traced_forward() is None:
        # What the class would do: scripts make their inputs in every step.
        result = torch.Tensor._make_subclass(SambaTensor, tensor, False)
        vars(result)["_underlying"] = tensor
        result._label(name, batch_dim, named_dims, sized_dims, region_name)
        return result
    return SambaTensor(
        tensor,
        name=name,
        batch_dim=batch_dim,
        named_dims=named_dims,
        sized_dims=sized_dims,
        region_name=region_name,
    )


def to_torch(obj: Any) -> Any:
    """Gives the torch tensor behind a SambaTensor.

    Args:
        obj: A SambaTensor; a torch tensor or None is returned as it is.

    Returns:
        A plain tensor that shares memory, or None.

    Raises:
        ConversionError: ``obj`` is not a tensor.
        NoHostData: It is an empty SambaTensor.
    """
    if isinstance(obj, SambaTensor):
        return obj.torch()
    if obj is None or isinstance(obj, torch.Tensor):
        return obj
    raise ConversionError(
        where="samba.to_torch(obj)", found=described(obj), wanted="a SambaTensor or a torch.Tensor"
    )


def _source(
    cls: type,
    tensor: torch.Tensor | None,
    shape: Iterable[int] | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    where = f"{cls.__name__}(...)"
    if tensor is None:
        if shape is None:
            raise ArgumentError(
                where=where,
                found="nothing" if dtype is None else f"dtype {described(dtype)} without a shape",
                wanted="torch_tensor, or shape and perhaps dtype",
            )
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ArgumentError(
                where=f"{cls.__name__}(dtype=...)",
                found=described(dtype),
                wanted="a torch.dtype, such as torch.float32",
            )
        sizes = sizes_of(shape, f"{cls.__name__}(shape=...)")
        return empty_data(sizes, torch.get_default_dtype() if dtype is None else dtype)
    if not isinstance(tensor, torch.Tensor):
        raise ConversionError(
            where=where,
            found=described(tensor),
            wanted="a torch.Tensor",
            hint="Lists and numpy arrays become one with torch.tensor(...).",
        )
    if shape is not None or dtype is not None:
        raise ArgumentError(
            where=where,
            found="shape or dtype together with torch_tensor",
            wanted="one or the other: a tensor brings its own",
        )
    return tensor


def _share(cls: type[SambaTensor], source: torch.Tensor) -> SambaTensor:
    """Shares memory; if it has a gradient, as a differentiable alias."""
    with torch._C.DisableTorchFunctionSubclass():
        source = host_of(source)
        try:
            if source.requires_grad:
                return source.as_subclass(cls)
            return torch.Tensor._make_subclass(cls, source, False)
        except (RuntimeError, NotImplementedError):
            raise ConversionError(
                where=f"{cls.__name__}(...)",
                found=f"{type(source).__name__}, a class that stores its values elsewhere",
                wanted="a plain torch.Tensor",
            ) from None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of class torch.Tensor as a leaf again; a result of autograd as part of its graph."""
    tensor = host_of(tensor)
    if tensor.is_leaf:
        return torch.Tensor._make_subclass(torch.Tensor, tensor, tensor.requires_grad)
    return tensor.as_subclass(torch.Tensor)
