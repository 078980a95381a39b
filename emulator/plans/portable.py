"""Plans in a form that other programs run: StableHLO, as text or as ``jax.export`` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export

from emulator.errors import DeviceError
from emulator.lowering.variant import Variant
from emulator.memory.buckets import BufferMap
from emulator.native.library import without_native
from emulator.plans.fusion import jitted_as_planned
from emulator.plans.plan import composition_of, jit_settings, traceable
from emulator.plans.steps import StepKey, failures_of_plan
from emulator.plans.traced import check_traced_sizes
from pef_schema.program import Program


class NotPortable(DeviceError):
    """A plan has parts for which jax promises no other version or machine anything.

    Attributes:
        program: Name of the program.
        problem: What jax says of it.
    """

    def __init__(self, *, program: str, problem: str) -> None:
        self.program, self.problem = program, problem
        super().__init__(
            f"program {program}: this run has no portable form: {problem}. As text it can be "
            "exported all the same."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PortablePlan:
    """Steps as a function in StableHLO.

    Args:
        text: The function ``main``, for people and compilers of this version.
        made: A ``jax.export.Exported``; None where only the text was asked for.
        reads: Buffers that are its arguments, in order: numbers of regions, or of buckets.
        writes: Buffers that are its results.
        donated: How many of its arguments a plan consumes, from the first on.
    """

    text: str
    made: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    donated: int


def portable_plan(
    program: Program,
    buffer_map: BufferMap,
    steps: StepKey,
    variant: Variant,
    *,
    platforms: Sequence[str],
    promised: bool,
) -> PortablePlan:
    """Compose steps to a function in StableHLO; nothing is compiled.

    Its kernels are XLA's own: the function may run on another processor, and calls into libraries
    have no portable form.

    Args:
        program: The program.
        buffer_map: Which buffers hold its regions.
        steps: ``(section, step of the section)`` pairs in the order to run.
        variant: What to specialise for.
        platforms: What it shall run on, as jax names platforms.
        promised: Whether the form is wanted that later versions of jax read.

    Returns:
        The function.

    Raises:
        NotPortable: If it has parts for which jax makes no such promise.
        LoweringError: If a node cannot be lowered; it names the node and its line.
        PlanError: If the steps cannot be lowered for another reason.
    """
    composition = composition_of(program, buffer_map, steps, variant)
    buffers = composition.signature
    shapes = [jax.ShapeDtypeStruct(*buffer_map.form(home)) for home in buffers.takes]
    exported: Any = None
    with (
        failures_of_plan(program, steps, "exporting"),
        traceable(composition, platforms[0]) as jitted,
        without_native(),
    ):
        traced = jitted.trace(*shapes)
        check_traced_sizes(traced.jaxpr)
        if tuple(platforms) == ("cpu",):
            jitted = jitted_as_planned(traced.jaxpr, **jit_settings(composition, None))
            traced = jitted.trace(*shapes)
        text = traced.lower(lowering_platforms=tuple(platforms)).as_text()
        if promised:
            exported = _export(jitted, shapes, platforms, program.name)
    return PortablePlan(
        text=text,
        made=exported,
        reads=buffers.takes,
        writes=buffers.gives,
        donated=buffers.donated,
    )


def _export(jitted: Any, shapes: Sequence[Any], platforms: Sequence[str], program: str) -> Any:
    make: Any = export.export(jitted, platforms=list(platforms))
    try:
        return make(*shapes)
    except ValueError as error:
        if "custom call" not in str(error):
            raise
        problem = str(error).partition("\n")[0].rstrip(".")
        raise NotPortable(program=program, problem=problem) from error
