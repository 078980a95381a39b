"""An order of a plan's operations in which little passes from one layer to the next.

A plan is traced step by step: all layers forward, all backward, all updates. An update can follow
the gradient that it waits for, and what a backward pass computes again can wait until it is read.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from emulator.plans.traced.operations import bytes_of, variables

__all__ = ["in_layers"]

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
