"""An executable that several processes run together, each on its own chips."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator.lowering.variant import Variant
from emulator.mesh.chips import Processes
from emulator.plans.direct_call import SLOW
from emulator.plans.step_choice import StepKey
from emulator.wide_types import wide_types
from pef_schema.program import Program

__all__ = ["joint_call", "operation_of"]

_MOST_NAMES = 3


def operation_of(program: Program, steps: StepKey, variant: Variant) -> str:
    """What a run is, in words that are the same for no other run of the program.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs that it runs.
        variant: What its plan is specialised for.
    """
    names = list(dict.fromkeys(program.sections[s].name for s, _ in steps))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    sets = [sorted(s) for s in (variant.seeded, variant.no_momentum, variant.no_dropout)]
    facts = repr((program.name, steps, sets, variant.ones)).encode()
    key = hashlib.sha256(facts).hexdigest()[:8]
    return f"a run of {', '.join(names[:_MOST_NAMES])}{more} (plan {key})"


def joint_call(
    call: Callable[..., Any], processes: Processes, operation: str, names: Sequence[str]
) -> Callable[..., Any]:
    """An executable that has ended in this process when the call returns.

    Args:
        call: The executable over the chips of all processes, as a function of arrays.
        processes: The processes; all of them call it.
        operation: What it is, for errors.
        names: What its arguments are, in their order.

    Returns:
        A function of arrays that gives arrays; who calls it does as for
        :func:`~emulator.plans.direct_call.direct_call`.
    """

    def run(*arrays: Any) -> Any:
        def own_part() -> Any:
            # On a thread of its own, which has jax's settings of its own.
            with wide_types():
                results = call(*arrays)
            for array in results:
                array.block_until_ready()
            return results

        SLOW.begin()  # what is donated is gone, and the results are not stored yet
        pairs = zip(names, arrays, strict=True)
        given: dict[str, np.ndarray] = {n: a for n, a in pairs if isinstance(a, np.ndarray)}
        return processes.run(operation, own_part, given)

    return run
