"""Lowerings of ops that the tracer and the compiler insert: rounding, checks, own gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.op_facts.names import CAST_INPUT, CAST_RESULT, CHECKED_BRANCH
from emulator.ops.random import uniform_bits
from emulator.ops.registry import op
from pef_schema.errors import SambaError
from pef_schema.program import CUSTOM_GRADIENT

_HIGH = np.uint32(0xFFFF0000)
_LOW = np.uint32(0x0000FFFF)


class UnknownCast(SambaError):
    """A graph asks for a way of rounding that does not exist."""

    def __init__(self, *, mode: str) -> None:
        self.mode = mode
        super().__init__(
            f"samba.cast_bf16: found mode {mode!r}, expected 'nearest_even', 'truncation' or "
            "'stochastic'; the PEF was made by another version, compile again"
        )


def _round(x: jax.Array, mode: str, seed: Any, stream: int, draw: int) -> jax.Array:
    """Round by integers: XLA may take a pair of float conversions for nothing and drop it."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    if mode == "nearest_even":
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    elif mode == "truncation":
        rounded = bits
    elif mode == "stochastic":
        rounded = bits + (uniform_bits(seed, stream, x.shape, draw=draw) & _LOW)
    else:
        raise UnknownCast(mode=mode)
    result = lax.bitcast_convert_type(rounded & _HIGH, jnp.float32)
    # Infinities stay, and NaN must not become one.
    return jnp.where(jnp.isfinite(x), result, x)


@partial(jax.custom_vjp, nondiff_argnums=(1, 3))
def _cast(x: jax.Array, mode: str, seed: Any, stream: int) -> jax.Array:
    return _round(x, mode, seed, stream, 0)


def _forward(x: jax.Array, mode: str, seed: Any, stream: int) -> tuple[jax.Array, Any]:
    return _round(x, mode, seed, stream, 0), seed


def _backward(mode: str, stream: int, seed: Any, g: jax.Array) -> tuple[jax.Array, None]:
    return _round(g, mode, seed, stream, 1), None


_cast.defvjp(_forward, _backward)


@op(CAST_INPUT, CAST_RESULT, reads=(), cheap=True)
def cast_bf16(
    x: jax.Array, mode: str, *, seed: jax.Array | None = None, stream: int = 0
) -> jax.Array:
    """Round float32 to what bfloat16 can hold; the dtype stays float32.

    The gradient is rounded in the same way, as that of ``x.bfloat16().float()`` is in torch.

    Args:
        x: float32.
        mode: ``"nearest_even"``, ``"truncation"`` or ``"stochastic"``. The last rounds up with
            the probability of what is cut off, so that the expected value is ``x``.
        seed: Random state, uint32[2]; read by stochastic rounding alone.
        stream: Number of the random stream.

    Returns:
        float32 array of the same shape.

    Raises:
        UnknownCast: If there is no such mode.

    Example:
        >>> float(cast_bf16(jnp.float32(1.0 + 2.0**-8), "nearest_even"))
        1.0
    """
    return _cast(x, mode, seed, stream)


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

    def backward(reads: Arrays, cotangents: Any) -> tuple[None, Arrays, None]:
        return None, gradient(tuple(cotangents), reads), None

    passed.defvjp(forward, backward)
    return tuple(passed(tuple(results), tuple(inputs), tuple(reads)))
