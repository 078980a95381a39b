"""``optimizer.fuse_step()``: all parameters of a group in one update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch

from samba.errors import ArgumentError


def fuse_optimizer(
    optimizer: torch.optim.Optimizer, do_flatten: bool = True, check_flatten: bool = True
) -> Any:
    """Give an optimizer the method ``fuse_step``; ``step`` stays as it is.

    Args:
        optimizer: The optimizer.
        do_flatten: Not needed here: torch updates a list of tensors in one call, wherever they are.
        check_flatten: Not needed here.

    Returns:
        The optimizer.

    Raises:
        ArgumentError: If it has that method already.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> weight.grad = torch.ones(2)
        >>> fuse_optimizer(torch.optim.SGD([weight], lr=0.5)).fuse_step()
        >>> weight.tolist()
        [0.5, 0.5]
    """
    if is_fused_optimizer(optimizer):
        raise ArgumentError(
            where="fuse_optimizer",
            found=f"a fused {type(optimizer).__name__}",
            wanted="an optimizer that is not fused",
        )
    fused: Any = optimizer
    fused.fuse_step = MethodType(fuse_step, optimizer)
    return optimizer


def is_fused_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether :func:`fuse_optimizer` was called with an optimizer."""
    return "fuse_step" in vars(optimizer)


def fuse_step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
    """Do a step with torch's implementation for lists of tensors, where the optimizer has one.

    Args:
        optimizer: The optimizer.
        closure: As for ``step``.

    Returns:
        What ``step`` returns.
    """
    with _foreach(optimizer):
        # Without an argument where there is none: a scheduler and hooks see a step as usual.
        return optimizer.step() if closure is None else optimizer.step(closure)


@contextlib.contextmanager
def _foreach(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    groups = [
        (group, group["foreach"])
        for group in optimizer.param_groups
        if "foreach" in group and not group.get("fused")
    ]
    try:
        for group, _ in groups:
            group["foreach"] = True
        yield
    finally:
        for group, before in groups:
            group["foreach"] = before
