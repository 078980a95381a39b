"""What was compiled, as plain data: sections with their costs, and memory along the schedules."""

from __future__ import annotations

from typing import Any

from emulator.costs.description import describe
from pef_schema.program import Program

__all__ = ["compiled_stats"]

FORMAT, VERSION = "samba.compiled_stats", 1
_OF_SECTIONS = ("id", "name", "types", "modules", "operations", "ops", "bytes", "cost")


def compiled_stats(program: Program, *, pef: str = "") -> dict[str, Any]:
    """Describe what was compiled; docs/run.md describes the keys.

    Args:
        program: The program.
        pef: Its file.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> compiled_stats(nothing)["sections"]
        []
    """
    described = describe(program)
    return {
        "format": FORMAT,
        "version": VERSION,
        "pef": pef,
        "program": program.name,
        "mapping": program.mapping,
        "inference": program.inference,
        "sections": [{key: s[key] for key in _OF_SECTIONS} for s in described["sections"]],
        "graphs": [g["memory"] for g in described["graphs"] if g["memory"] is not None],
    }
