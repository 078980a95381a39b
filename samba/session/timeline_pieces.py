"""The sections of a run, one after the other, as a timeline shows them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from emulator.plans.steps import StepKey
from pef_schema.program import Program
from pef_schema.program_facts import (
    modules_of,
    owners,
    section_lines,
    section_types,
    weight_lines,
)
from samba.session.request import RunRequest
from samba.support.timeline import Spans

__all__ = ["Noted", "Piece", "Pieces"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_LINES = 4
"""Source lines that an event carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A section within a run.

    Args:
        name: Name of the section.
        section: Its id.
        steps: Its steps that run.
        first: Whether it is the first of the run.
        facts: What a viewer shows of it: id, types, modules, lines.
    """

    name: str
    section: int
    steps: StepKey
    first: bool
    facts: Mapping[str, Any]

    def request(self, whole: RunRequest) -> RunRequest:
        """What runs it, as ``session.run(section_ids=[id])`` asks for it.

        Args:
            whole: The request of the run; what it sets is set before the first section.
        """
        return RunRequest(
            None,
            (),
            whole.hyperparams if self.first else _NOTHING,
            ((), (self.section,), None, None),
            whole.grad_of_outputs if self.first else None,
            whole.train,
        )


class Pieces:
    """The pieces of a program's runs.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._owners, self._weights = owners(program), weight_lines(program)
        self._facts: dict[int, Mapping[str, Any]] = {}

    def of(self, steps: StepKey) -> list[Piece]:
        """The pieces of a run.

        Args:
            steps: ``(section, step of the section)`` pairs in the order to run.
        """
        found: list[Piece] = []
        for section, group in itertools.groupby(steps, key=lambda step: step[0]):
            taken = tuple(group)
            entry = self._program.sections[section]
            # A section that is called several times in a row has its steps as often.
            calls = max(1, len(taken) // len(set(taken)))
            each = len(taken) // calls
            for call in range(calls):
                part = taken[call * each : (call + 1) * each]
                found.append(
                    Piece(
                        name=entry.name,
                        section=section,
                        steps=part,
                        first=not found,
                        facts=self._facts_of(section),
                    )
                )
        return found

    def _facts_of(self, index: int) -> Mapping[str, Any]:
        found = self._facts.get(index)
        if found is None:
            section = self._program.sections[index]
            found = self._facts[index] = {
                "section": index,
                "types": section_types(section),
                "modules": list(modules_of(self._program, section, self._owners)),
                "lines": list(section_lines(self._program, section, self._weights))[:_LINES],
            }
        return found


Noted = tuple[Spans, Piece]
"""Where a piece of a run is noted, and which."""
