"""What was compiled, as plain data: sections with their costs, and memory along the schedules."""

from __future__ import annotations

from typing import Any

from emulator.costs.schedule_memory import as_dict, schedule_memory
from emulator.costs.steps import section_cost
from emulator.costs.touched import readers_of
from pef_schema.program import Program
from pef_schema.section_facts import (
    modules_of,
    operations_of,
    owners,
    section_bytes,
    section_ops,
    section_types,
)

__all__ = ["compiled_stats"]

FORMAT, VERSION = "samba.compiled_stats", 1


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
    owned, readers = owners(program), readers_of(program)
    memory = [schedule_memory(program, i) for i in range(len(program.schedules))]
    return {
        "format": FORMAT,
        "version": VERSION,
        "pef": pef,
        "program": program.name,
        "mapping": program.mapping,
        "inference": program.inference,
        "sections": [
            {
                "id": i,
                "name": section.name,
                "types": section_types(section).split("+"),
                "modules": list(modules_of(program, section, owned)),
                "operations": dict(operations_of(program, section)),
                "ops": section_ops(program, section),
                "bytes": section_bytes(program, section),
                "cost": section_cost(program, i, readers).as_dict(),
            }
            for i, section in enumerate(program.sections)
        ],
        "graphs": as_dict(program, memory, moments=False)["graphs"],
    }
