"""What a program runs, as StableHLO: a whole run of a graph, or one section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emulator.device import Device
from emulator.plans.portable import portable_plan
from emulator.plans.steps import StepKey
from pef_schema.printable import one_line
from pef_schema.program import Program

_PLATFORM = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Memory that a function takes or gives.

    Args:
        names: Names of its region; several for a bucket of gradients.
        shape: Its shape.
        dtype: Name of its type.
        consumed: Whether a run consumes it: its memory is that of a result.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    consumed: bool = False

    def text(self) -> str:
        """One line for people.

        Example:
            >>> Place(names=("x",), shape=(2, 3), dtype="float32").text()
            'x float32[2, 3]'
        """
        form = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        names = ", ".join(map(one_line, self.names))
        return f"{names} {form}{', consumed' if self.consumed else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stablehlo:
    """A function in StableHLO.

    Args:
        text: As text, with its arguments and results above it.
        made: The ``jax.export.Exported``, None if only the text was asked for.
        arguments: What it takes, in order.
        results: What it gives, in order.
    """

    text: str
    made: Any
    arguments: tuple[Place, ...]
    results: tuple[Place, ...]


def section_steps(section: int, program: Program) -> StepKey:
    """The steps of one section.

    Args:
        section: Its index.
        program: The program.
    """
    return tuple((section, k) for k in range(len(program.sections[section].steps)))


def stablehlo(program: Program, steps: StepKey, *, promised: bool = False) -> Stablehlo:
    """The function that a run of some steps is, for the first run after a load.

    Later runs may take another one: with momentum of 0, for example, there is less to compute.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs in the order to run, as
            ``all_steps`` of ``emulator.plans.steps`` and :func:`section_steps` give them.
        promised: Whether the form is wanted that later versions of jax read.

    Returns:
        The function.

    Raises:
        NotPortable: If it has no such form.
        DeviceError: If the program cannot be run.
    """
    device = Device(program)
    plan = portable_plan(
        program, device.buffer_map, steps, device.variant, platforms=(_PLATFORM,), promised=promised
    )
    arguments = [_place(device, home, i < plan.donated) for i, home in enumerate(plan.reads)]
    results = [_place(device, home) for home in plan.writes]
    head = [
        *_commented("argument", arguments),
        *_commented("result", results),
    ]
    return Stablehlo(
        text="\n".join(head) + "\n" + plan.text,
        made=plan.made,
        arguments=tuple(arguments),
        results=tuple(results),
    )


def _place(device: Device, home: int, consumed: bool = False) -> Place:
    shape, dtype = device.buffer_map.form(home)
    bucket = device.buffer_map.bucket(home)
    regions = (home,) if bucket is None else bucket.regions
    names = tuple(device.program.regions[region].name for region in regions)
    return Place(names=names, shape=tuple(shape), dtype=dtype.name, consumed=consumed)


def _commented(what: str, places: Sequence[Place]) -> list[str]:
    return [f"// {what} {i}: {place.text()}" for i, place in enumerate(places)]
