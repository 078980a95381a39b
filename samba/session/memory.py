"""The memory of a loaded program: what it holds now, and what each of its plans takes.

Beside what is predicted from the program stands what the executable measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emulator.costs.memory import memory_need
from emulator.device import Device
from emulator.memory.budget import MeasuredMemory
from emulator.plans.steps import StepKey
from pef_schema.program import Program, Role
from samba.session.loaded import Loaded
from samba.support.layout import bytes_text, paragraph, table, terminal_width

FORMAT, VERSION = "samba.session_memory", 1

_EVALUATION = "evaluation"
"""The purpose of plans beside those of the loaded program."""

_NAMED = 3
"""Sections of a plan that the report names; of more the first and the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemory:
    """Memory of one plan.

    Args:
        sections: Names of its sections, in the order to run.
        purpose: ``"evaluation"`` for a plan of an evaluator; empty for one of the loaded program.
        predicted: From the program, in the same terms as what is measured.
        measured: By its executable; None of a backend that does not say.
    """

    sections: tuple[str, ...]
    purpose: str
    predicted: MeasuredMemory
    measured: MeasuredMemory | None

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "sections": list(self.sections),
            "purpose": self.purpose,
            "predicted": _figures(self.predicted),
            "measured": None if self.measured is None else _figures(self.measured),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMemory:
    """Memory of a loaded program.

    Args:
        program: Its name.
        held: Bytes by role that lie on the device now, by name of the role.
        plans: Its plans, the oldest first, then those of evaluators.
    """

    program: str
    held: tuple[tuple[str, int], ...]
    plans: tuple[PlanMemory, ...]

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for JSON; docs/run.md describes the keys."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "program": self.program,
            "held_bytes": sum(size for _, size in self.held),
            "held": dict(self.held),
            "plans": [plan.as_dict() for plan in self.plans],
        }

    def __str__(self) -> str:
        """A report for people."""
        width = terminal_width()
        total = sum(size for _, size in self.held)
        roles = ", ".join(f"{role} {bytes_text(size)}" for role, size in self.held) or "nothing"
        lines = [
            paragraph(
                f"{self.program}: {bytes_text(total)} on the device now: {roles}", width=width
            )
        ]
        if not self.plans:
            return "\n".join([*lines, "no plan has run yet"])
        rows: list[tuple[str, ...]] = []
        for plan in self.plans:
            what = _named(plan.sections) + (f" ({plan.purpose})" if plan.purpose else "")
            rows.append(("predicted", *_cells(plan.predicted), what))
            rows.append(("measured", *_cells(plan.measured), "  the same"))
        head = ("", "peak", "argument", "output", "alias", "temp", "plan")
        return "\n".join([*lines, table(head, rows, width=width, right=(1, 2, 3, 4, 5))])


def session_memory(loaded: Loaded) -> SessionMemory:
    """Take the memory of a loaded program.

    Args:
        loaded: The program on its device.
    """
    with loaded.turns.held():
        plans = [*_plans(loaded.device, "")]
        for evaluator in loaded.evaluators.values():
            for device in evaluator.devices:
                plans += _plans(device, _EVALUATION)
        return SessionMemory(
            program=loaded.program.name, held=_sizes_by_role(loaded.device), plans=tuple(plans)
        )


def _sizes_by_role(device: Device) -> tuple[tuple[str, int], ...]:
    """Bytes by role that lie on a device now."""
    sizes: dict[Role, int] = {}
    for home, buffer in enumerate(device.pool.buffers):
        if buffer is not None:
            role = device.program.regions[device.buffer_map.first_region(home)].role
            sizes[role] = sizes.get(role, 0) + int(buffer.nbytes)
    return tuple([(role.name.lower(), size) for role, size in sorted(sizes.items())])


def _plans(device: Device, purpose: str) -> list[PlanMemory]:
    program = device.program
    plans: list[PlanMemory] = []
    for steps, variant, plan in device.plans():
        need = memory_need(
            program,
            [program.sections[s].steps[k] for s, k in steps],
            seeded=variant.seeded,
            resting=variant.no_momentum,
        )
        plans.append(
            PlanMemory(
                sections=_sections(program, steps),
                purpose=purpose,
                predicted=MeasuredMemory(
                    argument=need.argument, output=need.output, alias=need.alias, temp=need.temp
                ),
                measured=plan.memory,
            )
        )
    return plans


def _sections(program: Program, steps: StepKey) -> tuple[str, ...]:
    """Names of the sections of steps; one of several steps once."""
    return tuple([program.sections[s].name for s, k in steps if k == 0 or (s, k - 1) not in steps])


def _named(sections: Sequence[str]) -> str:
    if len(sections) <= _NAMED:
        return " ".join(sections)
    return f"{sections[0]} .. {sections[-1]}, {len(sections)} sections"


def _figures(memory: MeasuredMemory) -> dict[str, int]:
    return {
        "peak_bytes": memory.peak,
        "argument_bytes": memory.argument,
        "output_bytes": memory.output,
        "alias_bytes": memory.alias,
        "temp_bytes": memory.temp,
    }


def _cells(memory: MeasuredMemory | None) -> tuple[str, ...]:
    if memory is None:
        return ("-",) * 5
    sizes = (memory.peak, memory.argument, memory.output, memory.alias, memory.temp)
    return tuple([bytes_text(size) for size in sizes])
