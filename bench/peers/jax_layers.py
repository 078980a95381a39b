"""Layers that several hand-written models share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, jax.Array]


def linear(p: Params, name: str, x: jax.Array) -> jax.Array:
    """``torch.nn.Linear``, with or without bias."""
    y = x @ p[f"{name}.weight"].T
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + bias


def layer_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    """``torch.nn.LayerNorm`` over the last dimension."""
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy over all but the last dimension."""
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()
