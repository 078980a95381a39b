"""The order of a weight's readers and its update, told to XLA as data.

XLA decides before it schedules whether a donated buffer can be written in place: every reader of
it must be an ancestor of the write. The input gradient of a layer reads the weight and is no
ancestor of the weight's update, so XLA would copy every weight in every step.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax import lax

from emulator.lowering.section import State
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


def after(array: jax.Array, others: Iterable[jax.Array]) -> jax.Array:
    """An array, bit for bit, that is not ready before others are.

    Args:
        array: The array, of a floating or complex type.
        others: Arrays of such types.

    Returns:
        The same values. XLA sees a dependency; the code it makes has none.

    Example:
        >>> import jax.numpy as jnp
        >>> float(after(jnp.float32(-0.0), [jnp.ones(3)]))
        -0.0
    """
    if jnp.iscomplexobj(array):
        others = tuple(others)
        return lax.complex(after(array.real, others), after(array.imag, others))
    word = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = lax.bitcast_convert_type(array, word)
    for other in others:
        if other.size:
            bits = bits | _zero(other).astype(word)
    return lax.bitcast_convert_type(bits, array.dtype)


def _zero(array: jax.Array) -> jax.Array:
    """A zero that XLA does not know to be one: it counts the leading zeros of an odd number."""
    array = array.real
    width = 8 * array.dtype.itemsize
    first = lax.slice(array, (0,) * array.ndim, (1,) * array.ndim).reshape(())
    word = jnp.dtype(f"uint{width}")
    bits = lax.bitcast_convert_type(first, word)
    return lax.shift_right_logical(lax.clz(bits | word.type(1)), word.type(width.bit_length() - 1))
