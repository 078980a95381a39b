"""Indices of SambaTensors: SambaFlow takes tensors of floating type too."""

from __future__ import annotations

from typing import Any

import torch


def integral(index: Any) -> Any:
    """An index with int64 in place of tensors of floating type, which torch refuses.

    Args:
        index: What stands in the brackets.

    Raises:
        IndexError: A tensor holds a number that is not whole.
    """
    if isinstance(index, tuple):
        return tuple(integral(item) for item in index)
    if not isinstance(index, torch.Tensor) or not index.is_floating_point():
        return index
    whole = index.long()
    if not torch.compiler.is_exporting() and not bool((whole == index).all()):
        raise IndexError(
            f"index: found {index.dtype} with numbers that are not whole, wanted whole numbers. "
            "Round the tensor first."
        )
    return whole
