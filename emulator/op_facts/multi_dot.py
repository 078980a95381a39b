"""The order in which a chain of matrices is multiplied with the fewest operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MOST = 128
"""Matrices of a chain whose order is found: the time grows with the cube."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStep:
    """One product of a chain.

    Args:
        left, right: Matrices of the chain that its factors are made of.
        flops: What it takes.
    """

    left: range
    right: range
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The products of a chain, the last one last."""

    steps: tuple[ChainStep, ...]


def cheapest_order(shapes: Sequence[tuple[int, ...]]) -> Chain:
    """The products of a chain: the matrix chain algorithm.

    Args:
        shapes: Of the matrices; the first and the last may be vectors.

    Returns:
        The products.

    Raises:
        ValueError: For so many matrices that finding the order would take longer than a moment.

    Example:
        >>> [step.flops for step in cheapest_order([(10, 2), (2, 30), (30, 3)]).steps]
        [360, 120]
    """
    matrices = [(1, *s) if i == 0 and len(s) == 1 else s for i, s in enumerate(shapes)]
    if len(matrices) > 1 and len(matrices[-1]) == 1:
        matrices[-1] = (*matrices[-1], 1)
    if not matrices:
        return Chain(steps=())
    if len(matrices) > _MOST:
        raise ValueError(f"a chain of {len(matrices)} matrices, of {_MOST} the order is found")
    sizes = [matrices[0][0], *(m[1] for m in matrices)]
    split = chain_splits(sizes)
    steps: list[ChainStep] = []

    def visit(i: int, j: int) -> None:
        if i == j:
            return
        k = split[i, j]
        visit(i, k)
        visit(k + 1, j)
        steps.append(
            ChainStep(
                left=range(i, k + 1),
                right=range(k + 1, j + 1),
                flops=2 * sizes[i] * sizes[k + 1] * sizes[j + 1],
            )
        )

    visit(0, len(matrices) - 1)
    return Chain(steps=tuple(steps))


def chain_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to split each part of a chain, so that the fewest multiplications are left.

    Args:
        sizes: Rows of each matrix in turn, and the columns of the last.

    Returns:
        By first and last matrix of a part: the last matrix of its left half.

    Example:
        >>> chain_splits([10, 2, 30, 3])[0, 2]
        0
    """
    n = len(sizes) - 1
    cost = {(i, i): 0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            ways = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            cost[i, j], split[i, j] = min(ways)
    return split
