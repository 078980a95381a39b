"""What reaches past the graph in ``forward``: attributes, gradients asked for, foreign tensors.

What has a meaning in a graph gets it; the rest is refused by its name, with the user's line, as
torch's exporter would forget it in silence or fail in words of its own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import torch

from samba.support.naming import root_name
from samba.tensor.conversions import integral
from samba.tensor.lazy_mode import traced_forward
from samba.tracer.errors import (
    GradientError,
    TraceError,
    UnsupportedOp,
    UnsupportedOps,
    UntracedFunction,
)
from samba.tracer.inputs import foreign_reason
from samba.tracer.torch_internals import FakeTensor, differentiates_functions
from samba.tracer.user_code import called_by_user, calling_line, is_user_file

T = torch.Tensor


class MemoryInForward(TraceError):
    """``forward`` reaches for host or device memory, or changes whose memory a tensor has."""

    deviation = "memory-in-forward"

    def __init__(self, *, name: str, hint: str = "") -> None:
        super().__init__(
            where=calling_line(),
            reason=f"forward() uses {name} of a tensor, which has no memory of its own in a graph",
            hint=hint or "Move it out of forward(), to before or after samba.session.run().",
        )


class EmptyInForward(TraceError):
    """``forward`` makes a SambaTensor without values."""

    deviation = "empty-in-forward"

    def __init__(self) -> None:
        super().__init__(
            where=calling_line(),
            reason="forward() makes a SambaTensor of a shape alone, which has no values",
            hint="Use samba.zeros(shape), samba.empty(shape) or another tensor with values.",
        )


class FrozenInForward(TraceError):
    """``forward`` changes whether a parameter is trained."""

    deviation = "frozen-in-forward"

    def __init__(self, *, name: str) -> None:
        super().__init__(
            where=calling_line(),
            reason=f"forward() changes requires_grad of {name}",
            hint="Call requires_grad_() before samba.session.compile(): a program trains what was "
            "to be trained when it was compiled. Use weight.detach() to leave it out here.",
        )


class GradInForward(TraceError):
    """``forward`` uses the gradient of a parameter."""

    deviation = "grad-in-forward"

    def __init__(self, *, name: str) -> None:
        super().__init__(
            where=calling_line(),
            reason=f"forward() uses {name}, but gradients are computed after it",
            hint="Read gradients after samba.session.run(), as sn_grad of the parameter.",
        )


class _GradFn:
    """The function of autograd that made a tensor, as ``forward`` sees it: hooks are refused.

    Args:
        node: Torch's own.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        if name in ("register_hook", "register_prehook"):
            raise HookOfGradFn(name=name)
        return getattr(self._node, name)


class HookOfGradFn(TraceError):
    """``forward`` puts a hook on a function of autograd, which no graph has."""

    deviation = "hook-of-grad-fn"

    def __init__(self, *, name: str) -> None:
        super().__init__(
            where=calling_line(),
            reason=f"forward() calls grad_fn.{name}(), and the device has no grad_fn",
            hint="Use tensor.register_hook(), which runs on the device.",
        )


def _grad_fn(tensor: T) -> _GradFn | None:
    node = tensor.grad_fn
    return None if node is None else _GradFn(node)


def _data(tensor: T) -> T:
    return tensor.detach()


def _set_data(tensor: T, value: T) -> None:
    raise MemoryInForward(
        name=".data = ...",
        hint="Use the new tensor itself; a buffer takes new values by buffer.copy_(values).",
    )


def _data_ptr(tensor: T) -> int:
    if isinstance(tensor, FakeTensor):
        raise MemoryInForward(name="data_ptr()")
    return tensor.data_ptr()


def _grad(tensor: T) -> T | None:
    if not tensor.is_leaf:
        return None
    if tensor.requires_grad:
        raise GradInForward(name=f"the gradient of {_name(tensor)}")
    return tensor.grad


def _requires(tensor: T, requires_grad: bool = True) -> T:
    if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad != requires_grad:
        raise FrozenInForward(name=_name(tensor))
    return tensor.requires_grad_(requires_grad)


def _getitem(tensor: T, index: Any) -> Any:
    return tensor[integral(index)]


def _setitem(tensor: T, index: Any, value: Any) -> None:
    tensor[integral(index)] = value


def _name(tensor: T) -> str:
    return vars(tensor).get("_sn_name") or f"a tensor of shape {tuple(tensor.shape)}"


_ALWAYS: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {T.__getitem__: _getitem, T.__setitem__: _setitem, T.data.__get__: _data}  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
)
_FOR_USERS: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {
        T.data.__set__: _set_data,  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
        T.data_ptr: _data_ptr,
        T.grad_fn.__get__: _grad_fn,  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  # as above
        T.grad.__get__: _grad,  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  # as above
        T.requires_grad.__set__: _requires,  # pyright: ignore[reportAttributeAccessIssue]  # as above
        T.requires_grad_: _requires,
    }
)


def attribute(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function that replaces an attribute of a tensor while ``forward`` is traced.

    Args:
        func: A function as torch passes it to ``__torch_function__``.

    Returns:
        The function; None if the attribute stays as it is.
    """
    if traced_forward() is None:
        return None
    for_users = _FOR_USERS.get(func)
    if for_users is not None and called_by_user():
        return for_users
    return _ALWAYS.get(func)


# -- gradients and foreign tensors ------------------------------------------------------


def refuse_gradients(func: Callable[..., Any]) -> None:
    """Raise if ``forward`` asks torch for gradients that its exporter would lose.

    ``torch.autograd.grad`` is traced where the exporter follows it, and refused elsewhere.

    Args:
        func: The function that ``forward`` calls.

    Raises:
        UntracedFunction: It asks for them, or a transform that asks for them runs it.
    """
    if func is torch.Tensor.backward:
        raise UntracedFunction(
            where=calling_line(),
            function="Tensor.backward()",
            hint="session.run computes the gradients of the losses that forward() returns: "
            "return the loss. A gradient that forward() itself computes with can be written as "
            "operations.",
        )
    if differentiates_functions():
        frames = [frame for frame, _ in traceback.walk_stack(None)]
        name = _transform(reversed(frames)) or "grad"
        raise UntracedFunction(
            where=calling_line(),
            function=f"torch.func.{name}",
            hint="torch.func.vmap is traced; write the derivative itself as operations, or "
            "compute it outside of forward() and pass it as an input.",
        )


def _transform(frames: Iterable[FrameType]) -> str:
    """Name of the first function of torch.func that the user's code has called."""
    from_user = False
    for frame in frames:
        code = frame.f_code
        if from_user and "_functorch" in Path(code.co_filename).parts:
            return code.co_qualname.split(".")[0]
        from_user = is_user_file(code.co_filename)
    return ""


def _refuse_history(tensor: T) -> None:
    if tensor.grad_fn is not None:
        raise history_error(calling_line())


def history_error(where: str) -> GradientError:
    """What is raised where ``forward`` uses what was computed outside of it from a parameter.

    Args:
        where: The user's line, or the name of the tensor.
    """
    return GradientError(
        where=where,
        reason="forward() uses a tensor that was computed outside of it from a parameter: torch's "
        "backward pass goes on into that computation, which a program does not have",
        hint="Compute it in forward(). If it is not to be trained, keep it without its history: "
        "t.detach().clone().",
        deviation="kept-history",
    )


def refuse_constants(model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> None:
    """Raise unless all tensors that ``forward`` uses and did not make are plain.

    Torch's graph does not tell the lines of operations on the others.

    Args:
        model: The model.
        tensors: What an operation takes, while it is traced.

    Raises:
        UnsupportedOps: If one is sparse, nested or quantized; with the line that uses it.
        GradientError: If a gradient would go on from one into what has made it.
    """
    for tensor in tensors:
        if not isinstance(tensor, FakeTensor) and torch.is_grad_enabled():
            _refuse_history(tensor)
        reason = "" if tensor.layout is torch.strided else foreign_reason(tensor)
        if reason and (not isinstance(tensor, FakeTensor) or "_path" in vars(tensor)):
            name = vars(tensor).get("_path", "")
            op = UnsupportedOp(
                name=f"constant {name}" if name else "a constant",
                count=1,
                lines=(calling_line(),),
                reason=f"{reason}: make it dense before, with to_dense()",
            )
            raise UnsupportedOps(model=root_name(model), ops=[op])
