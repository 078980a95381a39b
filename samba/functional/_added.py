"""Functions beside torch's own, under the paths of those that they resemble."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from pef_schema.errors import SambaError


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


class UndocumentedFunction(SambaError, RuntimeError):
    """A function whose results are documented nowhere, so that none is given.

    Args:
        name: The function.
        instead: What to do.
    """

    deviation = "undocumented-function"

    def __init__(self, *, name: str, instead: str) -> None:
        self.name = name
        super().__init__(
            f"{name}: its result is documented nowhere, so the emulator refuses it rather than "
            f"return a wrong one. {instead}"
        )


def groupby(tensor: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuses: how tokens are put into bins is documented nowhere.

    Raises:
        UndocumentedFunction: Always.
    """
    raise UndocumentedFunction(
        name="samba.groupby",
        instead="Sort and count with torch.sort, torch.cumsum and samba.functional.sn_scatter.",
    )
