"""The products of a node as data: how much each takes, and who wants it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import zip_longest

from emulator.op_facts.node_arguments import Place, Shape
from pef_schema.program import DType

__all__ = ["Part", "Products", "aligned", "at_positions", "each", "gradient_flops_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One product of a gradient.

    Args:
        wanted: It is computed where one of these arguments wants a gradient.
        flops: What it takes.
    """

    wanted: frozenset[Place]
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The products of one node.

    Args:
        forward: What those of the node itself take.
        gradient: Those of its gradient.
        again: What those take that the gradient needs results of, where they were not kept: it
            computes them again, unless the node runs in the same executable.
        operand: Type of what is multiplied.
    """

    forward: int
    gradient: tuple[Part, ...]
    again: int = 0
    operand: DType


def at_positions(*positions: int) -> frozenset[Place]:
    """Places of arguments that are tensors themselves."""
    return frozenset((position, 0) for position in positions)


def each(flops: int, operand: DType, *places: Place) -> Products:
    """A product with a gradient for each of its factors, of the same size."""
    parts = tuple(Part(wanted=frozenset({place}), flops=flops) for place in places)
    return Products(forward=flops, gradient=parts, operand=operand)


def aligned(a: Shape, b: Shape) -> list[tuple[int, int]]:
    """Sizes of two shapes that broadcast, the last axes first.

    Example:
        >>> aligned((5, 1), (7,))
        [(1, 7), (5, 1)]
    """
    return list(zip_longest(reversed(a), reversed(b), fillvalue=1))


def gradient_flops_of(products: Products, wanted: Collection[Place]) -> int:
    """What the products of a gradient take.

    Args:
        products: Those of the node.
        wanted: Where arguments stand that want a gradient.
    """
    return sum(part.flops for part in products.gradient if not part.wanted.isdisjoint(wanted))
