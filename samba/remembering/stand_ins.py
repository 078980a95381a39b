"""Tensors without values that stand for those of one call of ``forward``."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from samba.tensor.views import host_of
from samba.tracer.torch_internals import FakeTensor, outside_of_trace

CPU = torch.device("cpu")
META = torch.device("meta")


class Incomparable(Exception):
    """Whether a call of ``forward`` is what another was cannot be said.

    Attributes:
        place: Of what, as an expression or the name of an operation.
        problem: Why not.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"{place} {problem}")


class StandIn(FakeTensor):
    """A tensor of the CPU without values, as far as ``forward`` can tell.

    Libraries ask for the exporter's class of tensors to find out whether they are traced. They are
    to go the same way here as in the trace.

    Args:
        meta: A tensor of the same form on the meta device, which operations are called with.
        number: Its number in the log.
        memory: The number of the tensor whose memory it has.
        requires_grad: As of any tensor.
        is_parameter: Whether ``isinstance`` finds a parameter.
    """

    @staticmethod
    def __new__(
        cls,
        meta: torch.Tensor,
        number: int,
        memory: int,
        *,
        requires_grad: bool = False,
        is_parameter: bool = False,
    ) -> StandIn:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            layout=meta.layout,
            device=CPU,
            requires_grad=requires_grad,
        )
        self.meta, self.number, self.memory = meta, number, memory
        if is_parameter:
            self._is_param = True
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass  # that of the exporter's class wants its mode

    meta: torch.Tensor
    number: int
    memory: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]  # as torch's own subclasses have it
    device = torch.Tensor.device  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]  # that of the exporter's class asks its mode

    @property
    def fake_mode(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  # there is none
        """Refused: what asks for it, such as control flow, traces on its own."""
        raise Incomparable("forward()", "calls a function that does its own tracing")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Incomparable(str(func), "is called outside of forward()")


def digest_of(tensor: torch.Tensor) -> str:
    """The SHA-256 of a tensor's values, shape and type.

    Args:
        tensor: A strided tensor with values.

    Returns:
        Hexadecimal digits.

    Raises:
        Incomparable: If it is of another layout, or quantized.

    Example:
        >>> digest_of(torch.ones(2)) == digest_of(torch.ones(2).double())
        False
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise Incomparable("a constant", f"is a {tensor.layout} tensor on {tensor.device}")
    with torch.no_grad():
        plain = host_of(tensor).detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        flat = plain.cpu().contiguous().flatten().view(torch.uint8)
    state = hashlib.sha256(repr((tuple(tensor.shape), tensor.dtype)).encode())
    state.update(flat.numpy().tobytes())
    return state.hexdigest()


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the form of another on the meta device.

    Args:
        tensor: The other; a SambaTensor has perhaps no values.

    Raises:
        Incomparable: If it is of another layout.
    """
    form = host_of(tensor) if getattr(tensor, "_has_data", True) else tensor
    if form.layout is not torch.strided:
        raise Incomparable("forward()", f"takes a {form.layout} tensor")
    size, strides = tuple(form.shape), tuple(form.stride())
    return torch.empty_strided(size, strides, dtype=form.dtype, device=META)


def memory_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's memory, None if it has none.

    Args:
        tensor: Any tensor.
    """
    if tensor.is_meta or isinstance(tensor, FakeTensor) or not getattr(tensor, "_has_data", True):
        return None
    if tensor.layout is not torch.strided:
        return None
    with outside_of_trace():
        return host_of(tensor).untyped_storage().data_ptr() or None
