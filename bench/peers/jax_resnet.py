"""ResNet-18 by hand in jax: channels last inside, as convolutions in jax are usually written.

Weights keep torch's layout; their transposes are small beside the convolutions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from bench.peers.jax_layers import Params, cross_entropy, linear

MOMENTUM = 0.1
EPS = 1e-5
"""Defaults of ``torch.nn.BatchNorm2d``."""


def _conv(p: Params, name: str, x: jax.Array, stride: int, padding: int) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        p[f"{name}.weight"].transpose(2, 3, 1, 0),
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _batch_norm(p: Params, b: Params, new: Params, name: str, x: jax.Array) -> jax.Array:
    """BatchNorm in training mode; the statistics it leaves go into ``new``."""
    mean = x.mean((0, 1, 2))
    var = jnp.square(x - mean).mean((0, 1, 2))
    count = x.size // x.shape[-1]
    unbiased = lax.stop_gradient(var) * (count / (count - 1))
    for key, value in (("running_mean", lax.stop_gradient(mean)), ("running_var", unbiased)):
        new[f"{name}.{key}"] = (1 - MOMENTUM) * b[f"{name}.{key}"] + MOMENTUM * value
    new[f"{name}.num_batches_tracked"] = b[f"{name}.num_batches_tracked"] + 1
    return (x - mean) * lax.rsqrt(var + EPS) * p[f"{name}.weight"] + p[f"{name}.bias"]


def resnet18(p: Params, b: Params, image: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.ResNet18``."""
    new: Params = {}
    x = image.transpose(0, 2, 3, 1)
    x = jax.nn.relu(_batch_norm(p, b, new, "norm", _conv(p, "stem", x, 1, 1)))
    for i in range(8):
        name, stride = f"blocks.{i}", 2 if i in (2, 4, 6) else 1
        y = _conv(p, f"{name}.conv1", x, stride, 1)
        y = jax.nn.relu(_batch_norm(p, b, new, f"{name}.norm1", y))
        y = _batch_norm(p, b, new, f"{name}.norm2", _conv(p, f"{name}.conv2", y, 1, 1))
        if f"{name}.bridge.0.weight" in p:
            x = _conv(p, f"{name}.bridge.0", x, stride, 0)
            x = _batch_norm(p, b, new, f"{name}.bridge.1", x)
        x = jax.nn.relu(x + y)
    return cross_entropy(linear(p, "head", x.mean((1, 2))), label), new
