"""The facts of one op, and what follows from them for a node."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, cast

from pef_schema.program import Node, refs_of

ALL_INPUTS = None
"""``reads`` of an op whose gradient reads the value of every array argument, ``rounds`` of one all
of whose arguments are rounded."""

Rule = tuple[str, *tuple[int, ...]]
"""The name of a rule, and its numbers."""

Elements = Literal["same", "first", "chosen", "all", "padded"]
"""Whose elements a result has, unchanged except for their type.

* ``"same"``: those of the first argument, each in its place;
* ``"first"``: those of the first argument, elsewhere, left out or repeated;
* ``"chosen"``: those of the first argument that its indices choose;
* ``"all"``: those of all tensors that it takes;
* ``"padded"``: those of the first argument, and the number ``value``.
"""


class Fusing(enum.Enum):
    """What becomes of a result, and of what is read for it.

    XLA computes an elementwise op again in each of its readers rather than keep its result, as long
    as all of them are loops over elements themselves; a result that a product or a convolution
    reads lies in memory. What takes long for an element, such as an exponential, is not computed
    twice.
    """

    VIEW = "view"
    """The result is what the op takes, under another shape."""
    CHEAP = "cheap"
    """Elementwise: computed within each of its readers if all of these can hold it. Of a norm, what
    shifts and scales is; small moments lie in memory."""
    DEAR = "dear"
    """Elementwise and slow: computed within its reader if there is one alone."""
    REDUCES = "reduces"
    """What it reads may be computed within it; its own result lies in memory."""
    APART = "apart"
    """What it reads lies in memory, and so does its result."""

    @property
    def holds(self) -> bool:
        """Whether what it reads may be computed within it."""
        return self is not Fusing.APART


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """The facts of one op that are plain data.

    They are written at the op's ``@op(...)`` in ``emulator/ops``; ``tools/regen_op_facts.py``
    copies them to ``ops.json``, where they are available without jax.

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
        elements: Whose elements its results have; None where it computes or makes some, or where
            nobody has asked.
        view: Whether it gives what it takes under another shape: it moves nothing, even.
        repeats: Whether it gives an element several times: the gradients of these are added up.
        complex: Whether torch has it for complex numbers. Torch notices what it has not in its
            kernels, which a trace does not run; so another op is refused, or made of others, where
            it meets a complex number.
        counted: False where the cost goes by the data or by an algorithm that nobody has counted:
            sorts, factors of matrices, searches, draws of unknown length. It is told by name.
        flops: How its operations are counted that are not products, by the name in ``flops``;
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
    elements: Elements | None = None
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

    @property
    def keeps(self) -> bool:
        """Whether all elements of its results are some that it takes, in their own type.

        Example:
            >>> OpFacts(moves=True, elements="first").keeps, OpFacts(elements="same").keeps
            (True, False)
        """
        return self.moves and self.elements not in (None, "padded")

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> OpFacts:
        """Facts as they are written in a file.

        Args:
            record: What :meth:`to_record` gave; keys that are not facts are passed over.
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


class StatedFacts(TypedDict, total=False):
    """Facts as keywords: the type of what ``@op`` takes, each a field of :class:`OpFacts`."""

    reads: tuple[int, ...] | None
    linear_in: tuple[int, ...]
    cheap: bool
    differentiable: bool
    no_derivative: tuple[int, ...]
    loops: bool
    random: bool
    rate: int | None
    moves: bool
    elements: Elements | None
    view: bool
    repeats: bool
    complex: bool
    counted: bool
    flops: Rule | None
    products: str | None
    rounds: tuple[int, ...] | None
    scratch: str | None
    fusing: Fusing | None
    indices: str | None
    ranges: Rule | None


_DEFAULT = OpFacts()
_NAMES = tuple(field.name for field in fields(OpFacts))


def gradient_reads(node: Node, facts: OpFacts, has_grad: Callable[[int], bool]) -> Iterator[int]:
    """Values whose contents the gradient of ``node`` reads.

    Keyword values (a dropout's seed) always count: they decide the numbers.

    Args:
        node: The node.
        facts: Those of its op.
        has_grad: Whether a gradient flows through a value.
    """
    arguments = (*enumerate(node.args), *((-1, arg) for _, arg in node.kwargs))
    wanting = {p for p, arg in arguments if any(has_grad(v) for v in refs_of(arg))}
    for position, arg in enumerate(node.args):
        if position in facts.linear_in and wanting <= {position}:
            continue
        if facts.reads is None or position in facts.reads:
            yield from refs_of(arg)
    for _, arg in node.kwargs:
        yield from refs_of(arg)
