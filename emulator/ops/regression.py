"""Lowerings of elementwise losses: squared and absolute errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from emulator.ops.loss import MEAN, reduced
from emulator.ops.precision import widened
from emulator.ops.registry import op


@op("aten.mse_loss.default", reads=(0, 1))
@widened
def mse_loss(x: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    """Squared difference."""
    return reduced(jnp.square(x - target), reduction)
