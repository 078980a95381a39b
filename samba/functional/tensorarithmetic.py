"""Products of matrices and running sums. Functions of torch under SambaFlow's paths."""

from __future__ import annotations

import torch
from torch import (
    baddbmm,
    bmm,
    cumprod,
    cumsum,
    dot,
    einsum,
    matmul,
    mm,
    mv,
)

__all__ = [
    "addmm",
    "baddbmm",
    "bmm",
    "cumprod",
    "cumsum",
    "dot",
    "einsum",
    "matmul",
    "mm",
    "mv",
]


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    is_transposed: bool = False,
) -> torch.Tensor:
    """Computes ``beta * input + alpha * (mat1 @ mat2)``.

    Args:
        input: A tensor that broadcasts with the product, such as a bias of shape [out].
        mat1: Shape [..., rows, in].
        mat2: Shape [in, out]; [out, in] if ``is_transposed``.
        beta: Factor of ``input``; 0 leaves it out, NaN and all.
        alpha: Factor of the product.
        out: Where to put the result, outside of a traced ``forward``.
        is_transposed: Whether ``mat2`` is stored transposed, as the weight of a linear layer.

    Returns:
        A tensor of shape [..., rows, out].

    Example:
        >>> addmm(torch.ones(2), torch.ones(4, 5, 3), torch.ones(2, 3), is_transposed=True).shape
        torch.Size([4, 5, 2])
    """
    product = torch.matmul(mat1, mat2.transpose(-2, -1) if is_transposed else mat2)
    result = product if alpha == 1 else alpha * product
    if beta != 0:
        result = result + (input if beta == 1 else beta * input)
    return result if out is None else out.copy_(result)
