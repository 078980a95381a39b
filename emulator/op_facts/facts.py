"""The facts of one op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from emulator.op_facts.fusing import Fusing

ALL_INPUTS = None
"""``reads`` of an op whose gradient reads the value of every array argument, ``rounds`` of one all
of whose arguments are rounded."""

Rule = tuple[str, *tuple[int, ...]]
"""The name of a rule, and its numbers."""


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
        no_derivative: Positions of the arguments whose gradient torch refuses to compute: it raises
            in the backward pass, or in the forward pass of a tensor that requires a gradient.
        loops: Whether it runs a loop. XLA does not merge the loop of a backward section with that
            of its forward section, so a plan with both differentiates such an op where it first
            runs.
        random: Whether it takes ``seed`` (uint32[2]) and ``stream`` (int) keywords.
        rate: Position of the dropout rate that it takes: at rate 0 it draws nothing.
        moves: Whether it moves, chooses or fills elements and computes none.
        view: Whether it gives what it takes under another shape: it moves nothing, even.
        repeats: Whether it gives an element several times: the gradients of these are added up.
        complex: Whether torch has it for complex numbers. Torch notices what it has not in its
            kernels, which a trace does not run; so another op is refused, or made of others, where
            it meets a complex number.
        counted: False where the cost goes by the data or by an algorithm that nobody has counted:
            sorts, factors of matrices, searches, draws of unknown length. It is told by name.
        flops: How its operations are counted that are no products, by the name in ``other_flops``;
            None for one of each element of the result, or for none where it moves or is made of
            products.
        products: The formula of its matrix products or convolutions, by its name in
            ``product_flops``.
        rounds: Positions of the arguments that are rounded where a program rounds what goes into
            matrix products; ``ALL_INPUTS`` for all.
        scratch: What it takes in memory beside arguments and results, by its name in ``scratch``.
        fusing: What becomes of its result in memory, where :attr:`fuses` does not find it out.
        indices: Which of its arguments hold indices or divisors, by the name in ``index_uses``.
        ranges: How the whole numbers of its results are bounded by those that it takes, by the name
            in ``samba.compiler.value_ranges``.
    """

    reads: tuple[int, ...] | None = ALL_INPUTS
    linear_in: tuple[int, ...] = ()
    cheap: bool = False
    differentiable: bool = True
    no_derivative: tuple[int, ...] = ()
    loops: bool = False
    random: bool = False
    rate: int | None = None
    moves: bool = False
    view: bool = False
    repeats: bool = False
    complex: bool = False
    counted: bool = True
    flops: Rule | None = None
    products: str | None = None
    rounds: tuple[int, ...] | None = ()
    scratch: str | None = None
    fusing: Fusing | None = None
    indices: str | None = None
    ranges: Rule | None = None

    @property
    def fuses(self) -> Fusing:
        """What becomes of its result in memory, and of what is read for it.

        Example:
            >>> OpFacts(view=True, moves=True).fuses, OpFacts(cheap=True).fuses, OpFacts().fuses
            (<Fusing.VIEW: 'view'>, <Fusing.CHEAP: 'cheap'>, <Fusing.APART: 'apart'>)
        """
        if self.fusing is not None:
            return self.fusing
        if self.view:
            return Fusing.VIEW
        return Fusing.CHEAP if self.cheap or self.moves else Fusing.APART

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> OpFacts:
        """Facts as they are written in a file.

        Args:
            record: What :meth:`to_record` gave; keys that are no facts are passed over.
        """
        stated: dict[str, Any] = {
            name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
            for name, value in record.items()
            if name in _NAMES
        }
        if "fusing" in stated:
            stated["fusing"] = Fusing(stated["fusing"])
        return OpFacts(**stated)

    def to_record(self) -> dict[str, Any]:
        """The facts that are not the default, as JSON holds them.

        Example:
            >>> OpFacts(reads=(0,), cheap=True, fusing=Fusing.DEAR).to_record()
            {'reads': (0,), 'cheap': True, 'fusing': 'dear'}
        """
        stated = {n: getattr(self, n) for n in _NAMES}
        return {
            name: value.value if isinstance(value, Fusing) else value
            for name, value in stated.items()
            if value != getattr(_DEFAULT, name)
        }


_DEFAULT = OpFacts()
_NAMES = tuple(field.name for field in fields(OpFacts))
