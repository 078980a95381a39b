"""Host memory of a SambaTensor: values, gradient, and tensors without values."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from samba.errors import ArgumentError, ConversionError, NoHostData, described
from samba.tensor.empty import empty_data
from samba.tensor.host_use import note_alias, note_no_gradient, note_replaced, twinned
from samba.tensor.labels import Labels
from samba.tensor.lazy_mode import materializer_rng
from samba.tensor.recipe import Recipe, ViewRecipe
from samba.tensor.views import host_of

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
        """The values as a plain tensor that shares memory and is no part of autograd.

        Of a lazy parameter it is an empty SambaTensor; what is done to it is done to both.
        """
        if not self._has_data:
            if isinstance(self._materializer, (Recipe, ViewRecipe)):
                return self._empty_alias()
            self._need_data("data")
        with torch._C.DisableTorchFunctionSubclass():
            alias = torch.Tensor.data.__get__(host_of(self))  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
        if id(self) in twinned:
            note_alias(self, alias)
        return alias

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, torch.Tensor):
            raise ConversionError(
                where="SambaTensor.data = ...", found=kind(value), wanted="a torch.Tensor"
            )
        self._has_data = getattr(value, "_has_data", True)
        if not self._has_data:
            vars(self).pop("_underlying", None)
        with torch._C.DisableTorchFunctionSubclass():
            underlying = host_of(self)
            if isinstance(underlying, HostMemory) and underlying is not self:
                underlying.data = value
            else:
                torch.Tensor.data.__set__(underlying, value)  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
            if underlying is not self:
                torch.Tensor.data.__set__(self, underlying.detach())  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
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
        self._need_data("torch()")
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
        self._materializer = materializer

    @property
    def materializer_provided(self) -> bool:
        """Whether there is a materializer."""
        return self._materializer is not None

    def reusable(self) -> bool:
        """Whether its host memory can serve a transfer to the device as it is."""
        return self._has_data and self.is_contiguous()

    def _empty_alias(self) -> Tensor:
        """An empty SambaTensor of the same memory; SambaTensor makes it, which knows its class."""
        raise NotImplementedError

    def _need_data(self, operation: str) -> None:
        if not self._has_data:
            shape = tuple(self.shape)
            raise NoHostData(operation=operation, name=self._sn_name, shape=shape)

    def _materialized(self, operation: str) -> Tensor:
        if self._materializer is None:
            shape = tuple(self.shape)
            raise NoHostData(operation=operation, name=self._sn_name, shape=shape)
        made = _call_materializer(self._materializer, self)
        if not isinstance(made, Tensor) or made.shape != self.shape:
            is_tensor = isinstance(made, Tensor)
            raise ArgumentError(
                where=f"materializer of {self._sn_name or 'an unnamed SambaTensor'}",
                found=f"a tensor of shape {tuple(made.shape)}" if is_tensor else kind(made),
                wanted=f"a tensor of shape {tuple(self.shape)}",
            )
        return plain(made).detach().to(self.dtype)

    def set_(self, *args: Any, **kwargs: Any) -> Self:
        """Puts the tensor into another storage; see ``torch.Tensor.set_``."""
        with torch._C.DisableTorchFunctionSubclass():
            underlying = host_of(self)
            Tensor.set_(underlying, *args, **kwargs)
            if underlying is not self:
                torch.Tensor.data.__set__(self, underlying.detach())  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
        return self

    def stride(self, dim: int | None = None) -> Any:
        """Steps between neighbours, in elements; those of contiguous memory if it is empty."""
        if self._has_data:
            with torch._C.DisableTorchFunctionSubclass():
                strides = Tensor.stride(host_of(self))
        else:
            strides = _contiguous(self.shape)
        return strides if dim is None else strides[dim]

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
    """Calls a materializer in whichever of the three known forms its signature takes."""
    try:
        parameters = inspect.signature(materializer).parameters
    except ValueError:  # some builtins have no signature
        return materializer(tensor)
    if "shape" in parameters and "dtype" in parameters:
        wanted = {"shape": tensor.shape, "dtype": tensor.dtype}
        if "requires_grad" in parameters:
            wanted["requires_grad"] = tensor.requires_grad
        return materializer(**wanted)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters.values() if p.default is p.empty and p.kind in positional]
    if len(required) >= 2:
        return materializer(tensor, materializer_rng(tensor._sn_name))
    return materializer(tensor)


def kind(obj: object) -> str:
    """Type and value of an object, for messages."""
    return described(obj)
