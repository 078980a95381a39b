"""The order of a weight's readers and its update, told to XLA as data.

XLA decides before it schedules whether a donated buffer can be written in place: every reader of
it must be an ancestor of the write. The input gradient of a layer reads the weight and is no
ancestor of the weight's update, so XLA would copy every weight in every step.
"""

from __future__ import annotations

import jax

from emulator.lowering.section import State
from emulator.ops._after import after
from pef_schema.program import Step

Readers = dict[int, list[jax.Array]]
"""By region: results that were computed from its contents and that its update must wait for."""


def after_readers(step: Step, state: State, readers: Readers | None) -> State:
    """Memory for an update step, whose weights wait for what was computed from them.

    Args:
        step: The step that updates weights.
        state: Device memory that the step reads.
        readers: What was computed from weights, None or nothing where they need not wait.

    Returns:
        The same memory, the same values.
    """
    if not readers:
        return state
    return {**state, **{r: after(state[r], readers[r]) for r in step.writes if r in readers}}
