"""Lowerings: random numbers of distributions that need several draws an element.

They come from jax's own samplers, whose key is drawn from the generator in
:mod:`emulator.ops.random`; so the same seed and stream give the same numbers here too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.ops._promote import wide_type
from emulator.ops.random import uniform_bits
from emulator.ops.registry import op


def _key(seed: jax.Array, stream: int) -> jax.Array:
    return jax.random.wrap_key_data(uniform_bits(seed, stream, (2,)), impl="threefry2x32")


@op("aten.poisson.default", differentiable=False, random=True, counted=False)
def poisson(rate: jax.Array, generator: None = None, *, seed: jax.Array, stream: int) -> jax.Array:
    """Numbers of events at the rates that the elements state."""
    del generator
    wide = rate.astype(np.float64)
    drawn = jax.random.poisson(_key(seed, stream), wide, rate.shape, np.int64)
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
        _key(seed, stream), jnp.where(none, 0, n), jnp.where(none, 0, p), shape, np.float64
    )
    drawn = jnp.where(none & ~jnp.isnan(n + p), 0, jnp.where(p >= 1, n, drawn))
    return drawn.astype(count.dtype)


@op("aten._standard_gamma.default", reads=(0,), random=True, counted=False)
def standard_gamma(
    shape: jax.Array, generator: None = None, *, seed: jax.Array, stream: int
) -> jax.Array:
    """Gamma distributed numbers of rate 1; the gradient is the implicit one, as in torch."""
    del generator
    wide = wide_type(shape.dtype)
    drawn = jax.random.gamma(_key(seed, stream), shape.astype(wide), shape.shape, wide)
    # A gamma of a tiny shape underflows; torch keeps it above zero.
    return jnp.maximum(drawn, lax.stop_gradient(jnp.finfo(wide).tiny)).astype(shape.dtype)
