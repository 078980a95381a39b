"""Whatever fails while steps are compiled or run becomes an error of the device."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from emulator.errors import PlanError
from emulator.handler_errors import HANDLER_ERRORS, raise_error_of_handler
from emulator.lowering.failures import reason_of
from emulator.plans.step_choice import StepKey
from pef_schema.errors import SambaError
from pef_schema.program import Program, SectionKind


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
