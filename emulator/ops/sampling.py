"""Lowerings: random tensors of the usual distributions.

All draw from the generator in :mod:`emulator.ops.random`; torch's own numbers differ,
their distributions do not. None has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import compute_dtype, widen
from emulator.ops._promote import result_type
from emulator.ops.creation import stated_dtype
from emulator.ops.random import Size, normal, open_uniform, uniform, uniform_bits
from emulator.ops.registry import op
from pef_schema.program import DType

_draw = partial(op, cheap=True, differentiable=False, random=True)


def _register(name: str, draw: Callable[..., jax.Array]) -> None:
    """A distribution without parameters, by size and in the shape of a tensor."""

    @_draw(f"aten.{name}.default", complex=True)
    def of_size(
        size: Size, *, dtype: DType | None = None, seed: jax.Array, stream: int
    ) -> jax.Array:
        return draw(seed, stream, size, stated_dtype(dtype))

    @_draw(f"aten.{name}_like.default", complex=True)
    def like(
        x: jax.Array, *, dtype: DType | None = None, seed: jax.Array, stream: int
    ) -> jax.Array:
        return draw(seed, stream, x.shape, stated_dtype(dtype, x.dtype))


_register("rand", uniform)
_register("randn", normal)


def _integers(
    low: int, high: Any, size: Size, dtype: np.dtype, seed: jax.Array, stream: int
) -> jax.Array:
    """Integers in [low, high): the high word of a 64-bit product, without division."""
    bits = uniform_bits(seed, stream, size).astype(np.uint64)
    span = jnp.asarray(high).astype(np.int64).astype(np.uint64) - np.uint64(low % 2**64)
    near = (bits * span) >> np.uint64(32)
    low_word = uniform_bits(seed, stream, size, draw=1).astype(np.uint64)
    far = ((bits << np.uint64(32)) | low_word) % span  # spans beyond 32 bits
    drawn = jnp.where(span <= np.uint64(2**32), near, far).astype(np.int64)
    return (drawn + np.int64(low)).astype(dtype)


@_draw("aten.randint.default", ranges=("drawn_below",))
def randint(
    high: int, size: Size, *, dtype: DType | None = None, seed: jax.Array, stream: int
) -> jax.Array:
    """Integers in [0, high)."""
    return _integers(0, high, size, stated_dtype(dtype, np.int64), seed, stream)


@_draw("aten.randint.low", ranges=("drawn_below",))
def randint_low(
    low: int, high: int, size: Size, *, dtype: DType | None = None, seed: jax.Array, stream: int
) -> jax.Array:
    """Integers in [low, high)."""
    return _integers(low, high, size, stated_dtype(dtype, np.int64), seed, stream)


@_draw("aten.randint_like.default", ranges=("drawn_below",))
@_draw("aten.randint_like.Tensor")
def randint_like(
    x: jax.Array, high: Any, *, dtype: DType | None = None, seed: jax.Array, stream: int
) -> jax.Array:
    """Integers in [0, high) in the shape and dtype of ``x``."""
    return _integers(0, high, x.shape, stated_dtype(dtype, x.dtype), seed, stream)


@_draw("aten.randint_like.low_dtype", ranges=("drawn_below",))
def randint_like_low(
    x: jax.Array, low: int, high: int, *, dtype: DType | None = None, seed: jax.Array, stream: int
) -> jax.Array:
    """Integers in [low, high) in the shape and dtype of ``x``."""
    return _integers(low, high, x.shape, stated_dtype(dtype, x.dtype), seed, stream)


@op("aten.randperm.default", differentiable=False, random=True, counted=False, ranges=("permuted",))
def randperm(n: int, *, dtype: DType | None = None, seed: jax.Array, stream: int) -> jax.Array:
    """The numbers 0 to n - 1 in random order."""
    high = uniform_bits(seed, stream, (n,))
    low = uniform_bits(seed, stream, (n,), draw=1)
    place = lax.iota(stated_dtype(dtype, np.int64), n)
    return lax.sort((high, low, place), num_keys=2)[2]


@_draw("aten.bernoulli.default")
def bernoulli(p: jax.Array, *, seed: jax.Array, stream: int) -> jax.Array:
    """1 with the probability that each element states, else 0."""
    return (uniform(seed, stream, p.shape) < p.astype(np.float32)).astype(p.dtype)


@_draw("aten.bernoulli.p", "aten.bernoulli.Tensor")
def bernoulli_p(x: jax.Array, p: Any, *, seed: jax.Array, stream: int) -> jax.Array:
    """1 with probability ``p``, else 0, in the shape and dtype of ``x``."""
    return (uniform(seed, stream, x.shape) < jnp.asarray(p).astype(np.float32)).astype(x.dtype)


@_draw("aten.normal_functional.default")
def normal_functional(
    x: jax.Array, mean: float = 0.0, std: float = 1.0, *, seed: jax.Array, stream: int
) -> jax.Array:
    """Normal numbers in the shape and dtype of ``x``."""
    return (normal(seed, stream, x.shape, compute_dtype(x.dtype)) * std + mean).astype(x.dtype)


@_draw("aten.normal.float_float")
def normal_size(
    mean: float,
    std: float,
    size: Size,
    *,
    dtype: DType | None = None,
    seed: jax.Array,
    stream: int,
) -> jax.Array:
    """Normal numbers of one mean and deviation."""
    kind = stated_dtype(dtype)
    return (normal(seed, stream, size, compute_dtype(kind)) * std + mean).astype(kind)


@_draw(*("aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor"))
def normal_tensors(mean: Any, std: Any = 1.0, *, seed: jax.Array, stream: int) -> jax.Array:
    """Normal numbers whose means and deviations are given elementwise."""
    kind = result_type(mean, std)
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    z = normal(seed, stream, shape, compute_dtype(kind))
    return (z * jnp.asarray(std).astype(z.dtype) + jnp.asarray(mean).astype(z.dtype)).astype(kind)


@_draw("aten.log_normal.default")
def log_normal(
    x: jax.Array, mean: float = 1.0, std: float = 2.0, *, seed: jax.Array, stream: int
) -> jax.Array:
    """The exponential of normal numbers."""
    z = normal(seed, stream, x.shape, compute_dtype(x.dtype))
    return jnp.exp(z * std + mean).astype(x.dtype)


@_draw("aten.uniform.default")
def uniform_like(
    x: jax.Array, low: float = 0.0, high: float = 1.0, *, seed: jax.Array, stream: int
) -> jax.Array:
    """Uniform numbers in [low, high) in the shape and dtype of ``x``."""
    u = uniform(seed, stream, x.shape, compute_dtype(x.dtype))
    return (u * (high - low) + low).astype(x.dtype)


def _open(x: jax.Array, seed: jax.Array, stream: int) -> jax.Array:
    return open_uniform(seed, stream, x.shape, compute_dtype(x.dtype))


@_draw("aten.exponential.default")
def exponential(x: jax.Array, lambd: float = 1.0, *, seed: jax.Array, stream: int) -> jax.Array:
    """Exponentially distributed numbers, never zero."""
    return (-jnp.log(_open(x, seed, stream)) / lambd).astype(x.dtype)


@_draw("aten.cauchy.default")
def cauchy(
    x: jax.Array, median: float = 0.0, sigma: float = 1.0, *, seed: jax.Array, stream: int
) -> jax.Array:
    """Cauchy distributed numbers."""
    angle = (_open(x, seed, stream) - 0.5) * math.pi
    return (median + sigma * jnp.tan(angle)).astype(x.dtype)


@_draw("aten.geometric.default")
def geometric(x: jax.Array, p: float, *, seed: jax.Array, stream: int) -> jax.Array:
    """Number of trials up to the first success of probability ``p``."""
    if p == 1:
        return jnp.ones_like(x)
    return jnp.ceil(jnp.log(_open(x, seed, stream)) / math.log1p(-p)).astype(x.dtype)


@op(
    "aten.multinomial.default",
    differentiable=False,
    random=True,
    counted=False,
    ranges=("drawn_class",),
)
def multinomial(
    x: jax.Array, num_samples: int, replacement: bool = False, *, seed: jax.Array, stream: int
) -> jax.Array:
    """Indices drawn by weight, along the last dimension.

    Without replacement every index races with an exponential time of its rate; the
    first to arrive are drawn.
    """
    weights = widen(x)
    if not replacement:
        times = -jnp.log(open_uniform(seed, stream, x.shape, weights.dtype)) / weights
        place = lax.broadcasted_iota(np.int64, x.shape, x.ndim - 1)
        return lax.sort((times, place), dimension=x.ndim - 1, num_keys=1)[1][..., :num_samples]
    ends = jnp.cumsum(weights, axis=-1)
    shape = (*x.shape[:-1], num_samples)
    drawn = uniform(seed, stream, shape, weights.dtype) * ends[..., -1:]
    below = ends[..., None, :] <= drawn[..., :, None]
    return jnp.sum(below, axis=-1, dtype=np.int64)
