"""Lowering of values whose gradient the model computes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from emulator.ops.registry import op
from pef_schema.program import CUSTOM_GRADIENT

Arrays = tuple[jax.Array, ...]


@op(CUSTOM_GRADIENT, reads=(3,), cheap=True, view=True)
def custom_gradient(
    gradient: Callable[[Arrays, Arrays], Arrays], results: Arrays, inputs: Arrays, reads: Arrays
) -> Arrays:
    """Pass on results; their cotangents become those of the inputs by a function of the model's.

    Args:
        gradient: From cotangents of the results, and what it reads, to cotangents of the inputs.
        results: What comes out. No cotangent flows to them: they were computed apart.
        inputs: What gets a cotangent; their values do not matter.
        reads: What the gradient is computed from besides.

    Returns:
        The results.
    """

    @jax.custom_vjp
    def passed(results: Arrays, inputs: Arrays, reads: Arrays) -> Arrays:
        del inputs, reads
        return results

    def forward(results: Arrays, inputs: Arrays, reads: Arrays) -> tuple[Arrays, Arrays]:
        del inputs
        return results, reads

    def backward(kept: Arrays, cotangents: Any) -> tuple[None, Arrays, None]:
        return None, gradient(tuple(cotangents), kept), None

    passed.defvjp(forward, backward)
    return tuple(passed(tuple(results), tuple(inputs), tuple(reads)))
