"""Lowerings: random numbers from a counter-based generator.

Every element's bits are a hash of its index, the two words of the seed (key and step)
and the ordinal of the node that draws it (its stream). There is no state: the same
seed and stream give the same numbers wherever and whenever they are computed, so a
backward pass draws the forward pass's mask again instead of keeping it, and XLA fuses
the generator into its reader.

The hash is two rounds of the 32-bit mixer ``lowbias32`` (Chris Wellons, "Prospecting
for Hash Functions", 2018, https://nullprogram.com/blog/2018/07/31/; the constants are the
improved ones of hash-prospector, bias 0.107), each round with its own key word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import compute_dtype
from emulator.op_facts.names import NEXT_SEED
from emulator.ops._promote import is_complex, real_type
from emulator.ops.registry import op
from pef_schema.errors import SambaError

Size = tuple[int, ...]

_MAX_ELEMENTS = 2**32
_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: keeps the words of a key apart


class TooManyElements(SambaError):
    """A random tensor has more elements than the 32-bit counter can number."""

    deviation = "random-elements"

    def __init__(self, *, shape: Size) -> None:
        self.shape = shape
        super().__init__(
            f"a random tensor of shape {shape} was asked for: {math.prod(shape)} elements; at "
            f"most {_MAX_ELEMENTS} can be numbered. Draw it in several smaller tensors."
        )


def mix(x: Any) -> Any:
    """Scramble 32-bit words (``lowbias32``): a bijection in which every bit depends on every bit.

    Args:
        x: uint32 array of jax or numpy.

    Returns:
        uint32 array of the same shape and kind.
    """
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x21F0AAAD)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0xD35A2D97)
    return x ^ (x >> np.uint32(15))


def _label(stream: int, draw: int) -> np.ndarray:
    """A word for a stream and the number of the draw within the node."""
    scrambled = mix(np.array(stream % 2**32, np.uint32).reshape(1))
    return mix(scrambled + np.uint32((draw + 1) * _GOLDEN % 2**32))[0]


@partial(jax.jit, static_argnums=2)
def _bits(seed: jax.Array, label: jax.Array, shape: Size) -> jax.Array:
    """Words of a seed and a label: traced once for all nodes that draw as many."""
    first = mix(mix(seed[0] ^ label) + seed[1])
    second = mix(mix(seed[1] ^ np.uint32(_GOLDEN)) + mix(seed[0] + label))
    counter = lax.iota(np.uint32, math.prod(shape)).reshape(shape)
    return mix(mix(counter + first) ^ second)


def uniform_bits(seed: jax.Array, stream: int, shape: Size, *, draw: int = 0) -> jax.Array:
    """Uniformly distributed 32-bit words.

    Args:
        seed: uint32[2]: key and step.
        stream: Which sequence of this seed; a node's ordinal.
        shape: Shape of the result.
        draw: Further independent words of the same stream.

    Returns:
        uint32 array.

    Raises:
        TooManyElements: If the 32-bit counter would wrap.

    Example:
        >>> seed = jnp.array([1, 0], jnp.uint32)
        >>> bool((uniform_bits(seed, 0, (4,)) == uniform_bits(seed, 0, (4,))).all())
        True
    """
    shape = tuple(shape)
    if math.prod(shape) > _MAX_ELEMENTS:
        raise TooManyElements(shape=shape)
    return _bits(jnp.asarray(seed, np.uint32), _label(stream, draw), shape)


_MANTISSA = {"float32": 24, "bfloat16": 8, "float16": 11}


def uniform(seed: jax.Array, stream: int, shape: Size, dtype: Any = np.float32) -> jax.Array:
    """Numbers in [0, 1), as fine as the dtype's mantissa allows.

    Args:
        seed, stream, shape: See :func:`uniform_bits`.
        dtype: Floating dtype of the result.

    Returns:
        Array of ``dtype``; never 1.
    """
    dtype = np.dtype(dtype)
    if is_complex(dtype):
        parts = uniform(seed, stream, (2, *shape), real_type(dtype))
        return lax.complex(parts[0], parts[1])
    high = uniform_bits(seed, stream, shape)
    if dtype == np.float64:
        low = uniform_bits(seed, stream, shape, draw=1) >> np.uint32(11)
        return (high.astype(dtype) + low.astype(dtype) * 2.0**-21) * 2.0**-32
    bits = _MANTISSA[dtype.name]
    whole = (high >> np.uint32(32 - bits)).astype(np.float32)
    return (whole * np.float32(2.0**-bits)).astype(dtype)


def open_uniform(seed: jax.Array, stream: int, shape: Size, dtype: np.dtype) -> jax.Array:
    """Numbers strictly between 0 and 1, each in the middle of its bin; float32 or float64."""
    high = uniform_bits(seed, stream, shape)
    if dtype == np.float64:
        low = uniform_bits(seed, stream, shape, draw=1) >> np.uint32(12)
        return (high.astype(dtype) * 2.0**20 + low.astype(dtype) + 0.5) * 2.0**-52
    return ((high >> np.uint32(9)).astype(dtype) + np.float32(0.5)) * np.float32(2.0**-23)


def normal(seed: jax.Array, stream: int, shape: Size, dtype: Any = np.float32) -> jax.Array:
    """Standard normal numbers by the inverse error function.

    Args:
        seed, stream, shape: See :func:`uniform_bits`.
        dtype: Floating dtype of the result.

    Returns:
        Array of ``dtype``.
    """
    if is_complex(dtype):
        parts = normal(seed, stream, (2, *shape), real_type(dtype))
        return lax.complex(parts[0], parts[1]) * np.asarray(math.sqrt(0.5), dtype)
    wide = compute_dtype(dtype)
    u = open_uniform(seed, stream, shape, wide)
    return (lax.erf_inv(2 * u - 1) * np.asarray(math.sqrt(2), wide)).astype(dtype)


@op(NEXT_SEED, cheap=True, differentiable=False)
def next_seed(seed: jax.Array) -> jax.Array:
    """The seed of the next forward pass: the step word counts up."""
    return seed + np.array([0, 1], np.uint32)


def _dropout(x: jax.Array, p: Any, seed: jax.Array, stream: int) -> tuple[jax.Array, jax.Array]:
    if isinstance(p, (int, float)) and p == 0:
        return x, jnp.ones(x.shape, bool)
    rate = lax.stop_gradient(jnp.asarray(p))
    keep = uniform(seed, stream, x.shape) >= rate.astype(np.float32)
    share = jnp.where(rate < 1, 1 - rate, 1)
    wide = compute_dtype(x.dtype)
    scale = jnp.where(rate < 1, 1 / share, 0).astype(wide)
    return jnp.where(keep, x.astype(wide) * scale, 0).astype(x.dtype), keep


@op("aten.native_dropout.default", reads=(1,), cheap=True, random=True, rate=1)
def native_dropout(
    x: jax.Array, p: Any, train: bool | None, *, seed: jax.Array, stream: int
) -> tuple[jax.Array, jax.Array]:
    """Zero each element with probability ``p`` and scale the rest by ``1 / (1 - p)``.

    Args:
        x: Input.
        p: Rate: a number or a 0-d array. 0 returns the input exactly, 1 zeros.
        train: False returns the input; ``None`` means True.
        seed: uint32[2]: key and step.
        stream: The node's ordinal.

    Returns:
        The result and the boolean mask of what was kept.
    """
    if train is False:
        return x, jnp.ones(x.shape, bool)
    return _dropout(x, p, seed, stream)


@op("aten.dropout.default", reads=(1,), cheap=True, random=True, rate=1)
def dropout(x: jax.Array, p: Any, train: bool, *, seed: jax.Array, stream: int) -> jax.Array:
    """Dropout without the mask: see :func:`native_dropout`."""
    return _dropout(x, p, seed, stream)[0] if train else x


# -- distributions that need several draws an element, by jax's own samplers -------


def _jax_key(seed: jax.Array, stream: int) -> jax.Array:
    return jax.random.wrap_key_data(uniform_bits(seed, stream, (2,)), impl="threefry2x32")


@op("aten.poisson.default", differentiable=False, random=True, counted=False)
def poisson(rate: jax.Array, generator: None = None, *, seed: jax.Array, stream: int) -> jax.Array:
    """Numbers of events at the rates that the elements state."""
    del generator
    wide = rate.astype(np.float64)
    drawn = jax.random.poisson(_jax_key(seed, stream), wide, rate.shape, np.int64)
    return drawn.astype(rate.dtype)


@op("aten.binomial.default", differentiable=False, random=True, counted=False)
def binomial(
    count: jax.Array,
    prob: jax.Array,
    generator: None = None,
    *,
    seed: jax.Array,
    stream: int,
) -> jax.Array:
    """Numbers of successes among ``count`` trials of probability ``prob``."""
    del generator
    shape = jnp.broadcast_shapes(count.shape, prob.shape)
    n, p = count.astype(np.float64), prob.astype(np.float64)
    # The sampler does not end for every number that is none of a binomial's, -0.0 among them.
    none = (n <= 0) | (p <= 0)
    drawn = jax.random.binomial(
        _jax_key(seed, stream), jnp.where(none, 0, n), jnp.where(none, 0, p), shape, np.float64
    )
    drawn = jnp.where(none & ~jnp.isnan(n + p), 0, jnp.where(p >= 1, n, drawn))
    return drawn.astype(count.dtype)


@op("aten._standard_gamma.default", reads=(0,), random=True, counted=False)
def standard_gamma(
    shape: jax.Array, generator: None = None, *, seed: jax.Array, stream: int
) -> jax.Array:
    """Gamma distributed numbers of rate 1; the gradient is the implicit one, as in torch."""
    del generator
    wide = compute_dtype(shape.dtype)
    drawn = jax.random.gamma(_jax_key(seed, stream), shape.astype(wide), shape.shape, wide)
    # A gamma of a tiny shape underflows; torch keeps it above zero.
    return jnp.maximum(drawn, lax.stop_gradient(jnp.finfo(wide).tiny)).astype(shape.dtype)


# -- dropout inside composite ops such as attention and LSTM ------------------------


class MissingSeed(SambaError):
    """An op with dropout was lowered without random state."""

    def __init__(self, *, op: str) -> None:
        self.op = op
        super().__init__(
            f"{op}: its dropout rate is not 0 but no seed was given; "
            "pass the keywords seed (uint32[2]) and stream (int)"
        )


def drop_factors(
    shape: Sequence[int],
    dtype: Any,
    rate: float | jax.Array,
    seed: jax.Array | None,
    stream: int,
    *,
    op: str,
) -> jax.Array | None:
    """Factors that dropout multiplies by: 0 with probability ``rate``, else ``1 / (1 - rate)``.

    Args:
        shape, dtype: Of the result.
        rate: A number, or a 0-d array that may be 0.
        seed: Random state, uint32[2]; not read if ``rate`` is the number 0.
        stream: Number of the random stream.
        op: Name for the error.

    Returns:
        The factors, or None if ``rate`` is the number 0.

    Raises:
        MissingSeed: If there is dropout and no seed.
    """
    if isinstance(rate, (int, float)) and rate == 0:
        return None
    if seed is None:
        raise MissingSeed(op=op)
    p = jax.lax.stop_gradient(jnp.asarray(rate, jnp.float32))
    keep = uniform(seed, stream, tuple(shape), jnp.float32) >= p
    scale = jnp.where(p < 1, 1 / jnp.where(p < 1, 1 - p, 1), 0)
    return jnp.where(keep, scale, 0).astype(dtype)
