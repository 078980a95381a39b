"""Host memory of a SambaTensor: values, gradient, and tensors without values."""

from __future__ import annotations

import enum
import inspect
import operator
import sys
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from samba.errors import ArgumentError, ConversionError, NoHostData, described
from samba.tensor.host_use import note_alias, note_no_gradient, note_replaced, twinned
from samba.tensor.labels import Labels, NoSuchDimension
from samba.tensor.lazy_mode import materializer_rng
from samba.tensor.recipe import SameAs, empty_data
from samba.tensor.views import data_of, host_of, set_data

# Inside the class ``torch`` is a method, so annotations there need other names.
MemoryFormat = torch.memory_format
_CONTIGUOUS = torch.contiguous_format

Materializer = Callable[..., Tensor]


class HostMemory(Labels):
    """The part of SambaTensor that holds values on the host, or does without."""

    __slots__ = ()

    _materializer: Materializer | None = None
    _has_data: bool = True

    @property
    def has_data(self) -> bool:
        """Whether it holds values; an empty SambaTensor has only a shape and a dtype."""
        return self._has_data

    @property
    def data(self) -> Tensor:
        """The values as a plain tensor that shares memory and is not part of autograd.

        Of a tensor without values, such as a lazy parameter, it is an empty SambaTensor of the
        same memory; what is done to it is done to both.
        """
        if not self._has_data:
            return self._empty_alias()
        alias = data_of(host_of(self))
        if id(self) in twinned:
            note_alias(self, alias)
        return alias

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, torch.Tensor):
            raise ConversionError(
                where="SambaTensor.data = ...", found=described(value), wanted="a torch.Tensor"
            )
        self._has_data = getattr(value, "_has_data", True)
        if not self._has_data:
            vars(self).pop("_underlying", None)
        underlying = host_of(self)
        if isinstance(underlying, HostMemory) and underlying is not self:
            underlying.data = value
        else:
            set_data(underlying, value)
        self._follow(underlying)
        if id(self) in twinned:
            note_replaced(self)

    @property
    def grad(self) -> Tensor | None:
        """The host's gradient as a plain tensor, or None; the device's is ``sn_grad``.

        It is that of the tensor that the SambaTensor was made from.
        """
        with torch._C.DisableTorchFunctionSubclass():
            grad = torch.Tensor.grad.__get__(host_of(self))  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  # a descriptor
        if grad is None:
            if id(self) in twinned:
                note_no_gradient(self, sys._getframe(1).f_globals.get("__name__", ""))
            return None
        return plain(grad)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise ConversionError(
                where="SambaTensor.grad = ...",
                found=described(value),
                wanted="a torch.Tensor or None",
            )
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.grad.__set__(host_of(self), value if value is None else plain(value))  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  # a descriptor

    @grad.deleter
    def grad(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.grad.__set__(host_of(self), None)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  # a descriptor

    @property
    def requires_grad(self) -> bool:
        """Whether autograd records what is done with it: a flag of the tensor it was made from."""
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.requires_grad.__get__(host_of(self))  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def torch(self) -> Tensor:
        """Gives the torch tensor that it was made from.

        A result of torch functions was made from none: it gives a plain tensor of the same memory
        and the same place in autograd.

        Raises:
            NoHostData: It is empty.

        Example:
            >>> import samba, torch
            >>> tensor = torch.ones(2)
            >>> samba.SambaTensor(tensor).torch() is tensor
            True
        """
        if not self._has_data:
            raise self._no_data("torch()")
        underlying = host_of(self)
        if underlying is self:
            return self.as_subclass(torch.Tensor)
        return underlying.torch() if isinstance(underlying, HostMemory) else underlying

    def torch_tensor(self) -> Tensor:
        """Gives the plain torch tensor; an empty SambaTensor is materialized for the answer only.

        A materializer that draws random numbers may give other values each time.

        Raises:
            NoHostData: It is empty and has no materializer.
        """
        return self.torch() if self._has_data else self._materialized("torch_tensor()")

    def materialize_(self) -> None:
        """Fills an empty SambaTensor with the values of its materializer; else does nothing.

        Raises:
            NoHostData: It is empty and has no materializer.
        """
        if not self._has_data:
            self.data = self._materialized("materialize_()")

    def clear_data(self) -> None:
        """Frees the host memory of the values; shape, dtype and names stay.

        The tensor that it was made from keeps its values, if anyone holds it.
        """
        vars(self).pop("_underlying", None)
        self.data = empty_data(self.shape, self.dtype)
        self._has_data = False

    @property
    def materializer(self) -> Materializer | None:
        """The function that makes the values of an empty SambaTensor."""
        return self._materializer

    @materializer.setter
    def materializer(self, materializer: Materializer | None) -> None:
        if materializer is not None:
            form_of(materializer)
        self._materializer = materializer

    @property
    def materializer_provided(self) -> bool:
        """Whether there is a materializer."""
        made_by = self._materializer
        if isinstance(made_by, SameAs):
            return made_by.tensor.materializer_provided
        return made_by is not None

    def reusable(self) -> bool:
        """Whether its host memory can serve a transfer to the device as it is."""
        return self._has_data and self.is_contiguous()

    def _empty_alias(self) -> Tensor:
        """An empty SambaTensor of the same memory; SambaTensor makes it, which knows its class."""
        raise NotImplementedError

    def _no_data(self, operation: str) -> NoHostData:
        return NoHostData(operation=operation, name=self._sn_name, shape=tuple(self.shape))

    def _materialized(self, operation: str) -> Tensor:
        if self._materializer is None:
            raise self._no_data(operation)
        data = _call_materializer(self._materializer, self)
        if not isinstance(data, Tensor) or data.shape != self.shape:
            is_tensor = isinstance(data, Tensor)
            raise ArgumentError(
                where=f"materializer of {self._sn_name or 'an unnamed SambaTensor'}",
                found=f"a tensor of shape {tuple(data.shape)}" if is_tensor else described(data),
                wanted=f"a tensor of shape {tuple(self.shape)}",
            )
        return plain(data).detach().to(self.dtype)

    def set_(self, *args: Any, **kwargs: Any) -> Self:
        """Puts the tensor into another storage; see ``torch.Tensor.set_``."""
        underlying = host_of(self)
        with torch._C.DisableTorchFunctionSubclass():
            Tensor.set_(underlying, *args, **kwargs)
        self._follow(underlying)
        return self

    def _follow(self, underlying: Tensor) -> None:
        """Take the memory, shape and strides of the tensor that it was made from."""
        if underlying is not self:
            with torch._C.DisableTorchFunctionSubclass():
                values = underlying.detach()
            set_data(self, values)

    def stride(self, dim: int | None = None) -> Any:
        """Steps between neighbours, in elements; those of contiguous memory if it is empty.

        Args:
            dim: The dimension, from its end if it is negative; None for all.

        Raises:
            NoSuchDimension: There is no such dimension.
        """
        if self._has_data:
            with torch._C.DisableTorchFunctionSubclass():
                strides = Tensor.stride(host_of(self))
        else:
            strides = _contiguous(self.shape)
        if dim is None:
            return strides
        try:
            return strides[operator.index(dim)]
        except (TypeError, IndexError):
            last = len(strides) - 1
            raise NoSuchDimension(
                where="SambaTensor.stride(dim)",
                found=described(dim),
                wanted=f"a dimension from {-last - 1} to {last}" if strides else "only None",
            ) from None

    def is_contiguous(self, memory_format: MemoryFormat = _CONTIGUOUS) -> bool:
        """Whether the values lie in order; True if it is empty."""
        with torch._C.DisableTorchFunctionSubclass():
            contiguous = Tensor.is_contiguous(host_of(self), memory_format=memory_format)
        return contiguous or not self._has_data


def plain(tensor: Tensor) -> Tensor:
    """The same memory and place in autograd as a ``torch.Tensor``, whatever the class."""
    return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)


def _contiguous(shape: torch.Size) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _call_materializer(materializer: Materializer, tensor: Labels) -> Any:
    """Calls a materializer in whichever of the known forms its signature takes."""
    match form_of(materializer):
        case Form.TENSOR:
            return materializer(tensor)
        case Form.TENSOR_AND_RNG:
            return materializer(tensor, materializer_rng(tensor._sn_name))
        case Form.SHAPE_AND_DTYPE:
            return materializer(shape=tensor.shape, dtype=tensor.dtype)
        case Form.ALL_BY_NAME:
            requires_grad = tensor.requires_grad
            return materializer(shape=tensor.shape, dtype=tensor.dtype, requires_grad=requires_grad)


class Form(enum.Enum):
    """What a materializer is called with."""

    TENSOR = enum.auto()
    TENSOR_AND_RNG = enum.auto()
    SHAPE_AND_DTYPE = enum.auto()
    ALL_BY_NAME = enum.auto()


def form_of(materializer: Materializer) -> Form:
    """What a materializer is called with, by its signature.

    Args:
        materializer: What a script has given for one.

    Raises:
        ConversionError: It cannot be called, or not with any of the forms that are known.

    Example:
        >>> form_of(lambda shape, dtype: torch.zeros(shape, dtype=dtype)).name
        'SHAPE_AND_DTYPE'
    """
    if not callable(materializer):
        raise _no_materializer(described(materializer))
    try:
        signature = inspect.signature(materializer)
    except (ValueError, TypeError):  # some builtins have no signature
        return Form.TENSOR
    parameters = signature.parameters
    if "shape" in parameters and "dtype" in parameters:
        every = {"shape": None, "dtype": None, "requires_grad": None}
        if _takes(signature, **every):
            return Form.ALL_BY_NAME
        if _takes(signature, shape=None, dtype=None):
            return Form.SHAPE_AND_DTYPE
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters.values() if p.default is p.empty and p.kind in positional]
    if len(required) >= 2 and _takes(signature, None, None):
        return Form.TENSOR_AND_RNG
    if _takes(signature, None):
        return Form.TENSOR
    if _takes(signature, shape=None, dtype=None, requires_grad=None):  # by **kwargs
        return Form.ALL_BY_NAME
    raise _no_materializer(f"one with parameters {signature}")


def _takes(signature: inspect.Signature, *args: None, **kwargs: None) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _no_materializer(found: str) -> ConversionError:
    return ConversionError(
        where="SambaTensor(materializer=...)",
        found=found,
        wanted="a function of the tensor, of the tensor and a generator, or of shape, dtype and "
        "perhaps requires_grad by name",
    )
