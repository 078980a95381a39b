"""The numbers at which functions are compared, in each floating type."""

from __future__ import annotations

import math

import torch

KINKS = (
    *(0.5, 1.0, 2.0, 3.0, 6.0, 20.0, 0.25, 1.5, 2.5, 10.0, 0.1, 1e-3, 100.0),
    *(0.03125, math.pi, math.pi / 2),
)
"""Where the ops bend, with the arguments that they are given, halves, and the ordinary."""

LARGE = (16.0, 40.0, 88.0, 89.0, 104.0, 700.0, 711.0, 750.0, 1e4, 65504.0, 2.0**24, 1e10, 1e20)
"""Where exponentials of the types end, and beyond."""

SMALL = (1e-5, 1e-10, 1e-20)

WHOLE = (0, 1, -1, 2, -3, 7, 31, 32, 63, 64, 2**63 - 1, 1 - 2**63)
"""Whole numbers; at the lowest of 64 bits torch's own ``lcm`` ends the process."""


def _of(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def edges(dtype: torch.dtype) -> torch.Tensor:
    """NaN, infinities, zeros, denormals, the largest numbers, each kink and what lies next to it.

    Args:
        dtype: A floating type, or int64.

    Returns:
        Numbers of that type, an even count.
    """
    if not dtype.is_floating_point:
        return torch.tensor(WHOLE, dtype=dtype)
    info = torch.finfo(dtype)
    sizes = [
        *(0.0, info.tiny / 4, info.tiny, 4 * info.tiny, info.max, info.max / 2, info.max**0.5),
        *KINKS,
        *(k * f for k in (0.5, 1.0, 3.0, 20.0) for f in (1 + info.eps, 1 - info.eps / 2)),
        *LARGE,
        *SMALL,
    ]
    numbers = [math.nan, math.nan, math.inf, -math.inf]
    return _of([*numbers, *(s * x for x in sizes for s in (1, -1))], dtype)


def few(dtype: torch.dtype) -> torch.Tensor:
    """Fewer of them, for every combination of three."""
    info = torch.finfo(dtype)
    numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, info.max, -info.max, info.tiny / 4]
    return _of([*numbers, info.tiny, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 100.0], dtype)


def together(values: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Every combination of ``count`` values, one tensor for each place."""
    return [t.reshape(-1).clone() for t in torch.meshgrid(*[values] * count, indexing="ij")]


def denormal(x: torch.Tensor) -> torch.Tensor:
    """Where a number is nearer to zero than the least normal one of its type."""
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return (x != 0) & (x.double().abs() < torch.finfo(x.dtype).tiny)
