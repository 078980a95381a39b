"""Who makes and who reads the values of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.plans.traced.operations import variables

__all__ = ["Uses"]


class Uses:
    """Who makes and who reads the values of a plan.

    Args:
        eqns: Its operations in the order in which they run.
        results: What it gives.

    Attributes:
        made: Operations by the value that they make.
        read: Operations that read a value, in order; the number of operations for a result.
    """

    def __init__(self, eqns: Sequence[Any], results: Sequence[Any]) -> None:
        self.made: dict[Any, int] = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
        self.read: dict[Any, list[int]] = {}
        for i, eqn in enumerate(eqns):
            self._note(eqn.invars, i)
        self._note(results, len(eqns))

    def _note(self, atoms: Sequence[Any], reader: int) -> None:
        for v in dict.fromkeys(variables(atoms)):
            self.read.setdefault(v, []).append(reader)
