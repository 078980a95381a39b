"""The facts of one op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

ALL_INPUTS = None
"""``reads`` of an op whose gradient reads the value of every array argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """The facts of one op that are plain data.

    They are written at the op's ``@op(...)`` in ``emulator/ops``; ``tools/regen_op_facts.py``
    copies them to ``ops.json``, where they can be had without jax.

    Args:
        reads: Positions of the array arguments whose *values* the gradient
            reads (a position may be a list argument); ``ALL_INPUTS`` for all.
            An argument that is not listed may reach the lowering as zeros of the
            right shape when a gradient is computed.
        linear_in: Those of ``reads`` in which the op is linear: the gradient of such an argument
            does not read the argument itself, so ``x * 2`` reads nothing and ``x * y`` reads
            ``x`` only where ``y`` wants a gradient.
        cheap: Whether recomputing costs less than keeping the result
            (pointwise, views, masks).
        differentiable: False where torch gives no gradient.
        loops: Whether it runs a loop. XLA does not merge the loop of a backward section with that
            of its forward section, so a plan with both differentiates such an op where it first
            runs.
        random: Whether it takes ``seed`` (uint32[2]) and ``stream`` (int) keywords.
    """

    reads: tuple[int, ...] | None = ALL_INPUTS
    linear_in: tuple[int, ...] = ()
    cheap: bool = False
    differentiable: bool = True
    loops: bool = False
    random: bool = False

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> OpFacts:
        """Facts as they are written in a file.

        Args:
            record: What :meth:`to_record` gave; keys that are no facts are passed over.
        """
        known = {n: v for n, v in record.items() if n in _NAMES}
        return OpFacts(**{n: tuple(v) if isinstance(v, list) else v for n, v in known.items()})

    def to_record(self) -> dict[str, Any]:
        """The facts that are not the default, as JSON holds them.

        Example:
            >>> OpFacts(reads=(0,), cheap=True).to_record()
            {'reads': (0,), 'cheap': True}
        """
        stated = {n: getattr(self, n) for n in _NAMES}
        return {n: v for n, v in stated.items() if v != getattr(_DEFAULT, n)}


_DEFAULT = OpFacts()
_NAMES = tuple(field.name for field in fields(OpFacts))
