"""How a region is split among the chips of a mesh: its role and its shape decide.

The rule needs no jax: whoever plans memory for a mesh can ask it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from pef_schema.program import Program, Role


class Split(enum.StrEnum):
    """What is divided among chips."""

    NONE = "none"
    """Nothing: the program runs on one chip."""
    BATCH = "batch"
    """Samples: each chip has all weights, and computes its part of a batch."""
    WEIGHT = "weight"
    """Weights, with their gradients and states: each chip computes its part of a layer."""


_BATCHED = frozenset(
    {Role.INPUT, Role.OUTPUT, Role.OUTPUT_GRADIENT, Role.ACTIVATION, Role.COTANGENT}
)
_OF_WEIGHTS = frozenset({Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER_STATE})


def split_axis(role: Role, shape: Sequence[int], split: Split, chips: int) -> int:
    """The axis of a region along which chips divide it.

    By ``BATCH`` what has samples is divided along its first axis. By ``WEIGHT`` what belongs to
    weights is divided along the first axis that has a multiple of ``chips`` elements: for a linear
    layer, a convolution or an embedding of torch that is the axis of its features or words.

    Args:
        role: Why the region exists.
        shape: Its shape.
        split: What is divided.
        chips: How many chips there are.

    Returns:
        The axis; -1 where every chip has the whole region.

    Example:
        >>> split_axis(Role.WEIGHT, (10, 84), Split.WEIGHT, 4)
        1
        >>> split_axis(Role.INPUT, (32, 784), Split.BATCH, 4)
        0
        >>> split_axis(Role.WEIGHT, (10, 84), Split.BATCH, 4)
        -1
    """
    if chips == 1 or split is Split.NONE:
        return -1
    if split is Split.BATCH:
        divides = role in _BATCHED and bool(shape) and shape[0] > 0 and shape[0] % chips == 0
        return 0 if divides else -1
    if role in _OF_WEIGHTS:
        return next((i for i, n in enumerate(shape) if n > 0 and n % chips == 0), -1)
    return -1


def bytes_per_chip(program: Program, split: Split, chips: int, whole: Collection[Role] = ()) -> int:
    """Bytes that each chip keeps between runs.

    Args:
        program: A verified program.
        split: What is divided.
        chips: How many chips there are.
        whole: Roles of regions that each of them has as a whole in any case.

    Returns:
        The bytes of its parts of all regions that outlive a run; equal for all chips.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> bytes_per_chip(nothing, Split.WEIGHT, 4)
        0
    """
    total = 0
    for region in program.regions:
        if region.role.is_transient:
            continue
        axis = -1
        if region.role not in whole:
            axis = split_axis(region.role, region.shape, split, chips)
        total += region.nbytes // (chips if axis >= 0 else 1)
    return total
