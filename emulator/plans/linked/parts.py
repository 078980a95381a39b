"""An order of a plan's operations in which little passes from one layer to the next.

A plan is traced step by step: all layers forward, all backward, all updates. An update can follow
the gradient that it waits for, and what a backward pass computes again can wait until it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from emulator.plans.linked.layers import LEAST_SECONDS, LEAST_SPARED, Piece, Uses, pieces_of
from emulator.plans.traced import (
    FlatPlan,
    Forms,
    bytes_of,
    compiled_operations,
    flattened,
    is_view,
    seconds_of,
    variables,
)

_SMALL = 16
"""How many times smaller than what it reads a result is that is made as soon as it can be."""


def in_layers(eqns: Sequence[Any], sources: Container[Any]) -> list[int]:
    """The operations in an order by layers; each follows those it reads from.

    * What is made of sources alone comes first: one mask serves all layers.
    * What only makes results of the plan, as an update does, follows what it reads.
    * So does what makes little of much: the little is kept until it is read, not the much.
    * What makes as much as it reads, or more, comes right before its first reader.
    * All others stay in the order in which they were traced.

    Args:
        eqns: Those of a traced plan without effects.
        sources: Values that are made of nothing.

    Returns:
        The places of all operations, each once.
    """
    return _Ordering(eqns, sources).run()


class _Ordering:
    def __init__(self, eqns: Sequence[Any], sources: Container[Any]) -> None:
        self._eqns = eqns
        maker = {v: i for i, eqn in enumerate(self._eqns) for v in eqn.outvars}
        self._makers = [
            [*dict.fromkeys(maker[v] for v in variables(eqn.invars) if v in maker)]
            for eqn in self._eqns
        ]
        read = {i for makers in self._makers for i in makers}
        self._first: list[bool] = []
        self._late: list[bool] = []
        self._early: list[bool] = []
        for i, eqn in enumerate(self._eqns):
            reads = bytes_of({v for v in variables(eqn.invars) if v in maker})
            makes = bytes_of(eqn.outvars)
            given = [v for v in variables(eqn.invars) if v not in sources]
            self._first.append(all(a in maker and self._first[maker[a]] for a in given))
            self._late.append(i in read and makes * (_SMALL + 1) >= reads * _SMALL)
            self._early.append(i not in read or makes * _SMALL <= reads)
        self._done = [False] * len(self._eqns)
        self._order: list[int] = []

    def run(self) -> list[int]:
        waiting = self._waiting()
        missing = [0] * len(self._eqns)
        for waits in waiting:
            for i in waits:
                missing[i] += 1
        for i in range(len(self._eqns)):
            if self._first[i] or (self._early[i] and not missing[i] and not self._late[i]):
                self._emit(i)
        at = len(self._order)
        for i in range(len(self._eqns)):
            if not self._late[i]:
                self._emit(i)
            while at < len(self._order):  # what waited for that alone comes next
                for early in waiting[self._order[at]]:
                    missing[early] -= 1
                    if not missing[early]:
                        self._emit(early)
                at += 1
        return self._order

    def _waiting(self) -> list[list[int]]:
        """Early operations by what they wait for: what they read, but through late ones."""
        roots: list[frozenset[int]] = []
        waiting: list[list[int]] = [[] for _ in self._eqns]
        for i, makers in enumerate(self._makers):
            found: set[int] = set()
            for maker in makers:
                found |= roots[maker] if self._late[maker] else {maker}
            roots.append(frozenset(found) if self._late[i] else frozenset())
            if self._early[i] and not self._late[i]:
                for root in sorted(found):
                    waiting[root].append(i)
        return waiting

    def _emit(self, wanted: int) -> None:
        stack = [wanted]
        while stack:
            i = stack[-1]
            pending = [] if self._done[i] else [m for m in self._makers[i] if not self._done[m]]
            if pending:
                stack.extend(reversed(pending))
                continue
            stack.pop()
            if not self._done[i]:
                self._done[i] = True
                self._order.append(i)


LEAST_PARTS = 4
"""A plan that takes less time than so many parts, by an estimate, stays whole."""

_MOST_OF_A_SLICE = 4
"""How many times larger than a slice an array may be for the slice to be taken where it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Operations that are one executable.

    Args:
        eqns: The operations.
        takes: Values that they read and do not make; the first ``donated`` of them are consumed.
        gives: Values that later parts read, or that the plan gives.
        donated: How many values are consumed.
        form: Parts of one form share an executable.
    """

    eqns: tuple[Any, ...]
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]
    donated: int
    form: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A plan in parts.

    Args:
        parts: In the order in which they run.
        results: What the plan gives: values and literals.
    """

    parts: tuple[Part, ...]
    results: tuple[Any, ...]


def parts_of(traced: ClosedJaxpr, donated: int) -> Parts | None:
    """Divide a plan where it has equal layers.

    Args:
        traced: The plan. It gives first what takes the place of the donated arguments.
        donated: How many of its arguments, the first ones, are donated.

    Returns:
        The parts; None where too little would be shared.
    """
    functions: dict[int, int] = {}
    if seconds_of(traced.jaxpr.eqns) < LEAST_PARTS * LEAST_SECONDS:
        return None
    if traced.jaxpr.effects or _operations(traced.jaxpr.eqns, functions) < LEAST_SPARED:
        return None
    forms = Forms()
    flat = flattened(traced.jaxpr, forms)
    order = in_layers(flat.eqns, flat.sources)
    eqns = [flat.eqns[i] for i in order]
    numbers = [flat.forms[i] for i in order]
    pieces = pieces_of(eqns, numbers, Uses(eqns, flat.results))
    if not pieces:
        return None
    arguments = traced.jaxpr.invars[:donated]
    parts = _Division(forms, flat, eqns, numbers, pieces, arguments).parts()
    first = {part.form: id(part) for part in reversed(parts)}
    again = [part for part in parts if first[part.form] != id(part)]
    spared = sum(_operations(part.eqns, functions) for part in again)
    if spared < LEAST_SPARED:
        return None
    return Parts(parts=tuple(parts), results=tuple(flat.results))


def _operations(eqns: Sequence[Any], known: dict[int, int]) -> int:
    return sum(compiled_operations(eqn, known) for eqn in eqns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wiring:
    """How a piece's operations hang together.

    Args:
        eqns: The operations, with those made again of what others have made.
        takes: Values that they read and do not make, in the order in which they are read.
        makes: What they make.
        form: Pieces of one form may share an executable.
    """

    eqns: list[Any]
    takes: dict[Any, int]
    makes: dict[Any, int]
    form: tuple[Hashable, ...]


class _Division:
    """A plan in pieces.

    Args:
        forms: Numbers of operations.
        flat: The plan.
        eqns, numbers: Its operations in the order in which they run, and their forms.
        pieces: Their places.
        donated: Arguments; each makes room for the result in its place.
    """

    def __init__(
        self,
        forms: Forms,
        flat: FlatPlan,
        eqns: Sequence[Any],
        numbers: Sequence[int],
        pieces: Sequence[Piece],
        donated: Sequence[Any],
    ) -> None:
        self._forms, self._eqns, self._numbers = forms, eqns, numbers
        self._pieces = pieces
        self._remade: dict[Any, tuple[Any, int]] = dict(flat.sources)
        for eqn, number in zip(eqns, numbers, strict=True):
            if is_view(eqn) and _is_near(eqn):
                self._remade[eqn.outvars[0]] = eqn, number
        self._wired = [self._wiring(number, piece) for number, piece in enumerate(pieces)]
        self._last: dict[Any, int] = {}
        results = variables(flat.results)
        self._taken: set[Any] = {*results}
        for number, wired in enumerate(self._wired):
            self._last.update(dict.fromkeys(wired.takes, number))
            self._taken.update(wired.takes)
        self._last.update(dict.fromkeys(results, len(pieces)))  # an argument may be a result, too
        own = {v for wired in self._wired for v in wired.makes}
        counted = Counter(results)
        self._room = {
            out: argument
            for argument, out in zip(donated, flat.results, strict=False)
            if not isinstance(out, Literal) and out in own and counted[out] == 1
        }

    def parts(self) -> list[Part]:
        """All pieces as parts."""
        found: list[tuple[dict[int, Any], Hashable]] = []
        needed: dict[Hashable, set[int]] = {}
        for number, wired in enumerate(self._wired):
            rooms = {
                place: self._room[v]
                for v, place in wired.makes.items()
                if v in self._room and self._last.get(self._room[v], -1) <= number
            }
            taken = [(place, wired.takes.get(v, -1)) for place, v in rooms.items()]
            form = (wired.form, *taken)
            found.append((rooms, form))
            # Of equal parts each gives what one of them has to give.
            needed.setdefault(form, set()).update(
                place for v, place in wired.makes.items() if v in self._taken
            )
        return [
            self._part(wired, rooms, form, needed[form])
            for wired, (rooms, form) in zip(self._wired, found, strict=True)
        ]

    def _wiring(self, number: int, piece: Piece) -> _Wiring:
        takes: dict[Any, int] = {}
        makes: dict[Any, int] = {}
        again: dict[Any, int] = {}
        eqns: list[Any] = []
        form: list[Hashable] = [] if piece.layer else [("alone", number)]

        def place(atom: Any) -> Hashable:
            if isinstance(atom, Literal):
                return self._forms.literal(atom)
            if atom in makes:
                return makes[atom]
            if atom in self._remade:
                if atom not in again:
                    add(*self._remade[atom], again)
                return "again", again[atom]
            return -1 - takes.setdefault(atom, len(takes))

        def add(eqn: Any, number: int, made: dict[Any, int]) -> None:
            form.append((number, *[place(a) for a in eqn.invars]))
            eqns.append(eqn)
            for v in eqn.outvars:
                made[v] = len(made)

        for i in piece.eqns:
            add(self._eqns[i], self._numbers[i], makes)
        return _Wiring(eqns=eqns, takes=takes, makes=makes, form=tuple(form))

    def _part(
        self, wired: _Wiring, rooms: Mapping[int, Any], form: Hashable, needed: set[int]
    ) -> Part:
        donated = dict.fromkeys(rooms.values())
        made = [*wired.makes]
        return Part(
            eqns=tuple(wired.eqns),
            takes=(*donated, *[v for v in wired.takes if v not in donated]),
            gives=tuple([made[place] for place in (*rooms, *sorted(needed - rooms.keys()))]),
            donated=len(donated),
            form=form,
        )


def _is_near(view: Any) -> bool:
    """Whether a view is worth making again of what it is a view of."""
    size = bytes_of(view.outvars)
    return view.primitive.name != "slice" or bytes_of(view.invars) <= _MOST_OF_A_SLICE * size
