"""Lowering of checks that a branch of ``forward`` goes the way in which it was traced."""

from __future__ import annotations

import jax

from emulator.op_facts.names import CHECKED_BRANCH
from emulator.ops.registry import op


@op(CHECKED_BRANCH, cheap=True, differentiable=False)
def checked_branch(failed: jax.Array, condition: jax.Array, taken: bool) -> jax.Array:
    """Whether a branch has gone the other way, now or in a run whose check nobody has read yet.

    Args:
        failed: bool (): whether it had before.
        condition: One element of any type: what ``forward`` branches on.
        taken: What the graph was traced for.

    Returns:
        bool ().
    """
    return failed | (condition.reshape(()).astype(bool) != taken)
