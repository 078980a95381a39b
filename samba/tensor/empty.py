"""Tensors without values: a shape, a dtype, and perhaps what makes the values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

T = torch.Tensor
S = TypeVar("S", bound=torch.Tensor)


def empty_data(shape: Iterable[int], dtype: torch.dtype) -> T:
    """A tensor of any shape that holds one element's memory: every stride is zero."""
    return torch.empty((), dtype=dtype).expand(tuple(shape))


def empty_with(cls: type[S], shape: tuple[int, ...], dtype: torch.dtype, recipe: Any) -> S:
    """An empty SambaTensor with a materializer.

    Args:
        cls: The SambaTensor class.
        shape, dtype: Of the tensor.
        recipe: The materializer.
    """
    result = T._make_subclass(cls, empty_data(shape, dtype), False)
    result._has_data = False  # pyright: ignore[reportAttributeAccessIssue]  # cls is SambaTensor
    result._materializer = recipe  # pyright: ignore[reportAttributeAccessIssue]  # cls is SambaTensor
    return result
