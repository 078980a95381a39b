"""Shapes, pieces and places of tensors. Functions of torch under SambaFlow's paths."""

from __future__ import annotations

from typing import Any

import torch
from torch import (
    cat,
    chunk,
    clone,
    flatten,
    flip,
    gather,
    index_select,
    masked_fill,
    masked_select,
    movedim,
    narrow,
    permute,
    repeat_interleave,
    reshape,
    roll,
    scatter,
    scatter_add,
    select,
    sort,
    split,
    squeeze,
    stack,
    swapaxes,
    t,
    take_along_dim,
    tile,
    topk,
    transpose,
    tril,
    triu,
    unbind,
    unflatten,
    unsqueeze,
)

__all__ = [
    "cat",
    "chunk",
    "clone",
    "expand",
    "flatten",
    "flip",
    "gather",
    "index_select",
    "masked_fill",
    "masked_select",
    "movedim",
    "narrow",
    "permute",
    "repeat",
    "repeat_interleave",
    "reshape",
    "roll",
    "scatter",
    "scatter_add",
    "select",
    "sort",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "t",
    "take_along_dim",
    "tile",
    "topk",
    "transpose",
    "tril",
    "triu",
    "triu_fill",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
]


def expand(input: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """Repeats dimensions of size 1 without copying; see ``torch.Tensor.expand``."""
    return input.expand(*sizes)


def repeat(input: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """Copies a tensor side by side; see ``torch.Tensor.repeat``."""
    return input.repeat(*sizes)


def view(input: torch.Tensor, *shape: Any) -> torch.Tensor:
    """Gives another shape to the same memory; see ``torch.Tensor.view``."""
    return input.view(*shape)


def triu_fill(input: torch.Tensor, value: float) -> torch.Tensor:
    """Fills what lies above the main diagonal of the last two dimensions, as a causal mask does.

    Args:
        input: Shape [..., rows, columns].
        value: The value to fill in.

    Returns:
        A new tensor.

    Example:
        >>> triu_fill(torch.ones(2, 2), 0.0)
        tensor([[1., 0.],
                [1., 1.]])
    """
    rows, columns = input.shape[-2:]
    above = torch.arange(columns) > torch.arange(rows)[:, None]
    return input.masked_fill(above, value)
