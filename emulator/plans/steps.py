"""The steps to run: chosen by schedule or type, refused where they cannot start, their failures."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence, Set
from contextlib import contextmanager

from emulator.errors import NotSeeded, PlanError, UnknownSection
from emulator.handler_errors import HANDLER_ERRORS, raise_error_of_handler
from emulator.lowering.failures import reason_of
from pef_schema.errors import SambaError
from pef_schema.program import OutputGrad, Program, SectionKind

StepKey = tuple[tuple[int, int], ...]
"""``(section, step of the section)`` pairs in the order to run."""


def all_steps(program: Program, graph: int = 0) -> StepKey:
    """All steps of a graph's schedule.

    Args:
        program: The program.
        graph: Index of the graph.

    Returns:
        The steps in order.
    """
    return tuple(
        (call.section, k)
        for call in program.schedules[graph].calls
        for k in range(len(program.sections[call.section].steps))
    )


def find_kind(name: str) -> SectionKind | None:
    """Find a section type by its name in either case, with or without a leading ``$``.

    Args:
        name: The name.

    Returns:
        The type, None if there is no such type.
    """
    return SectionKind.__members__.get(name.upper().removeprefix("$"))


def section_kind(name: str) -> SectionKind:
    """Return the section type of a name, which may be written as for :func:`find_kind`.

    Raises:
        UnknownSection: If there is no such type.
    """
    kind = find_kind(name)
    if kind is None:
        raise UnknownSection(
            found=[name], wanted=[k.name for k in SectionKind], what="section type"
        )
    return kind


def steps_of_kinds(program: Program, names: Sequence[str], graph: int = 0) -> StepKey:
    """Steps of the given types: all of the first type, then all of the second, and so on.

    Args:
        program: The program.
        names: Section types.
        graph: Index of the graph.

    Returns:
        The steps in order; none for a type the program does not have.

    Raises:
        UnknownSection: If a type does not exist at all.
    """
    steps = all_steps(program, graph)
    return tuple(
        (s, k)
        for kind in map(section_kind, names)
        for s, k in steps
        if program.sections[s].steps[k].kind is kind
    )


def check_seeds(program: Program, steps: StepKey, seeded: Set[int]) -> None:
    """Refuse steps with a backward pass that would start from nothing.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs.
        seeded: Regions of outputs' gradients that were written.

    Raises:
        NotSeeded: If there is one; it names the outputs.
    """
    for s, k in steps:
        step = program.sections[s].steps[k]
        outputs = program.graphs[step.graph].outputs if step.graph >= 0 else ()
        grads = {o.grad_region for o in outputs if o.grad_region >= 0}
        read = grads.intersection(step.reads)
        if step.kind is SectionKind.BCKWD and read and not grads & seeded:
            names = [o.name for o in outputs if o.grad is OutputGrad.ONES]
            raise NotSeeded(names=names or [o.name for o in outputs if o.grad_region >= 0])


@contextmanager
def failures_of_plan(program: Program, steps: StepKey, doing: str) -> Generator[None, None, None]:
    """Turn what a body raises into a :class:`PlanError`.

    Errors of this project pass as they are, as does what a signal's handler raises.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs that the body works on.
        doing: What it does, for the message.

    Raises:
        PlanError: If the body raised something else; that is its cause.
    """
    try:
        with HANDLER_ERRORS:
            yield
    except SambaError:
        raise
    except Exception as error:
        raise_error_of_handler(error)
        names = list(dict.fromkeys(program.sections[s].name for s, _ in steps))
        raise PlanError(steps=names, doing=doing, reason=reason_of(error)) from error


def run_failure(error: Exception, kinds: Iterable[SectionKind]) -> Exception:
    """The error of the device for what an executable has raised.

    Args:
        error: What it raised.
        kinds: Kinds of the steps that it runs.

    Returns:
        The same error if it is one of this project, else a :class:`PlanError`.

    Raises:
        BaseException: What a signal's handler has raised, if it is that.
    """
    if isinstance(error, SambaError):
        return error
    raise_error_of_handler(error)
    names = sorted(kind.name for kind in kinds)
    return PlanError(steps=names, doing="running steps of kind", reason=reason_of(error))
