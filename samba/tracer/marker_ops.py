"""Operations of ours that mark places in an exported graph.

Two say where gradients are the model's own, one says which way a branch of ``forward`` went.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from samba.tracer.errors import GradientError
from samba.tracer.torch_internals import keep_operation
from samba.tracer.user_code import calling_line

MARKER = "samba.custom_gradient.default"
"""Passes on results; their gradients become those of its inputs by a recorded backward pass."""

COTANGENT = "samba.cotangent.default"
"""Stands for the gradient of a result of a marker."""

CHECK = "samba.checked_branch.default"
"""Says what a condition was when the model was traced: another value is an error of the run."""


@cache
def register() -> torch.library.Library:
    """Make the operations known to torch, once in a process.

    Returns:
        What keeps them known.
    """
    library = torch.library.Library("samba", "FRAGMENT")
    library.define("custom_gradient(Tensor[] results, Tensor[] inputs, int index) -> Tensor[]")
    library.define("cotangent(Tensor like, int index, int position) -> Tensor")
    library.define("checked_branch(Tensor condition, bool taken) -> ()")
    library.impl("custom_gradient", _like_results, "CompositeExplicitAutograd")
    library.impl("cotangent", _like, "CompositeExplicitAutograd")
    library.impl("checked_branch", _nothing, "CompositeExplicitAutograd")
    torch.library.register_autograd("samba::custom_gradient", _backward, lib=library)
    keep_operation(torch.ops.samba.checked_branch.default)
    return library


def marked(
    results: list[torch.Tensor], inputs: list[torch.Tensor], index: int
) -> list[torch.Tensor]:
    """Results with a gradient of their own, which require it.

    Args:
        results: Tensors without history.
        inputs: What gets a gradient.
        index: Number of the record.
    """
    return torch.ops.samba.custom_gradient(results, inputs, index)


def cotangent(like: torch.Tensor, index: int, position: int) -> torch.Tensor:
    """The gradient of a marker's result.

    Args:
        like: The result.
        index: Number of the record.
        position: Which of its results it is.
    """
    return torch.ops.samba.cotangent(like.detach(), index, position)


def check(condition: torch.Tensor, taken: bool) -> None:
    """Put a check into the graph that is being traced.

    Args:
        condition: One element of any type.
        taken: What it has to be, as a truth value.
    """
    register()
    torch.ops.samba.checked_branch(condition, taken)


def _like_results(
    results: list[torch.Tensor], inputs: list[torch.Tensor], index: int
) -> list[torch.Tensor]:
    return [torch.empty_like(result) for result in results]


def _like(like: torch.Tensor, index: int, position: int) -> torch.Tensor:
    return torch.empty_like(like)


def _nothing(condition: torch.Tensor, taken: bool) -> None:
    del condition, taken


def _backward(ctx: Any, *grads: Any) -> Any:
    raise GradientError(
        where=calling_line(),
        reason="forward() differentiates through an autograd function or a hook",
        hint="Only the device's own backward pass runs these. Take such gradients outside of "
        "forward(), or write them as torch operations.",
        deviation="inner-custom-gradient",
    )
