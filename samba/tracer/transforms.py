"""Functions that torch cannot export where ``forward`` calls them: refused by name.

These are the transforms of ``torch.func`` that differentiate, gradients asked for with
``.backward()`` or ``torch.autograd``, and control flow by the value of a tensor.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from samba.tracer.errors import UntracedFunction
from samba.tracer.names import calling_line, is_user_file
from samba.tracer.torch_internals import differentiates_functions

_CONTROL_FLOW = ("cond", "while_loop", "scan", "map", "associative_scan")
"""What torch._higher_order_ops offers; a file there has the name of its function."""


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


WHY_LOST = (
    "Torch's exporter follows gradients of some operations (+, *, **, sum, sin), and loses what "
    "others keep for theirs (linear, tanh, exp, softmax): write this gradient as operations, or "
    "compute it outside of forward() and pass it as an input."
)
"""What a user can do where a gradient within ``forward`` is lost."""


def gradient_of_input(where: str) -> UntracedFunction:
    """The refusal of a gradient that the exporter has lost.

    Args:
        where: The user's line.
    """
    return UntracedFunction(
        where=where,
        function="torch.autograd.grad",
        hint=WHY_LOST,
    )


def refuse_control_flow(trace: TracebackType | None, where: str) -> None:
    """Raise if control flow by value is what could not be exported.

    Args:
        trace: Where the export failed.
        where: The user's line.

    Raises:
        UntracedFunction: A function such as ``torch.cond`` is on the way there.
    """
    for frame, _ in traceback.walk_tb(trace):
        name = Path(frame.f_code.co_filename).stem
        if name in _CONTROL_FLOW and "_higher_order_ops" in frame.f_code.co_filename:
            raise UntracedFunction(
                where=where,
                function=f"torch.{name}" if name == "cond" else f"{name} of torch",
                hint="A compiled graph is static: compute both sides and choose with "
                "torch.where, or make the condition a Python value.",
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
