"""Comparing numbers of the device with those of the host."""

from __future__ import annotations

import torch

from pef_schema.printable import say
from samba.errors import ArgumentError, SambaError, described
from samba.sambatensor import to_torch
from samba.support.given import as_number

__all__ = ["MAX_BF16_TRUNCATE_NORMAL_REL", "NotClose", "assert_close"]

MAX_BF16_TRUNCATE_NORMAL_REL = 2.0**-7
"""Largest relative error of cutting a normal float32 down to bfloat16, which keeps 7 bits."""


class NotClose(SambaError, AssertionError):
    """Two tensors differ by more than they may.

    Args:
        name: Label of the comparison.
        problem: What differs, as a sentence.
        max_difference: Largest absolute difference; NaN if shapes forbid one.
    """

    def __init__(self, *, name: str, problem: str, max_difference: float) -> None:
        self.name = name
        self.max_difference = max_difference
        super().__init__(f"{name or 'assert_close'}: {problem}")


def assert_close(
    a: torch.Tensor,
    b: torch.Tensor,
    name: str = "",
    threshold: float = 3e-3,
    rtol: float = 1e-2,
    visualize: bool = False,
) -> None:
    """Checks ``|a - b| <= threshold + rtol * |b|`` for every element, NaN equal to NaN.

    The product's own rule is not documented; this form and these defaults fit what its published
    logs let pass.

    Args:
        a: One tensor, of any kind that has values on the host.
        b: The reference, of a shape that broadcasts with it.
        name: Label for the message.
        threshold: Absolute tolerance.
        rtol: Relative tolerance.
        visualize: Whether to print the largest and the mean difference.

    Raises:
        NotClose: An element differs by more, or the shapes do not broadcast. It is an
            ``AssertionError``.
        ArgumentError: A tolerance is no number, or negative.

    Example:
        >>> assert_close(torch.tensor([1.0]), torch.tensor([1.01]), "loss", threshold=3e-3)
    """
    for what, tolerance in (("threshold", threshold), ("rtol", rtol)):
        if not as_number(tolerance) >= 0:
            where = f"assert_close({what})"
            raise ArgumentError(where=where, found=described(tolerance), wanted="0 or more")
    first, second = (_float64(tensor) for tensor in (a, b))
    try:
        first, second = torch.broadcast_tensors(first, second)
    except RuntimeError:
        raise NotClose(
            name=name,
            problem=f"shapes {tuple(first.shape)} and {tuple(second.shape)} do not broadcast",
            max_difference=float("nan"),
        ) from None
    if first.numel() == 0:
        return
    difference = (first - second).abs()
    if visualize:
        say(f"{name}: max difference {difference.max():.6g}, mean {difference.mean():.6g}")
    wrong = ~torch.isclose(first, second, rtol=rtol, atol=threshold, equal_nan=True)
    if not wrong.any():
        return
    allowed = threshold + rtol * second.abs()
    excess = torch.where(wrong, (difference - allowed).nan_to_num(nan=torch.inf), -torch.inf)
    worst = int(excess.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), first.shape))
    value, reference = first.flatten()[worst].item(), second.flatten()[worst].item()
    raise NotClose(
        name=name,
        problem=(
            f"{int(wrong.sum())} of {wrong.numel()} elements differ by more than "
            f"{threshold:g} + {rtol:g} * |reference|; the worst, at {index}, is {value:.8g} "
            f"where {reference:.8g} was expected"
        ),
        max_difference=float(difference.nan_to_num(nan=torch.inf).max()),
    )


def _float64(tensor: torch.Tensor) -> torch.Tensor:
    plain = to_torch(tensor).detach()
    return plain.to(torch.complex128 if plain.is_complex() else torch.float64)
