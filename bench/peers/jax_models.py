"""The cases' mathematics written by hand in jax, as one would without this project.

Parameters come as a dict under the names of torch's ``state_dict``. Every
function returns the mean loss of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, jax.Array]
Loss = Callable[[Params, jax.Array, jax.Array], jax.Array]


def _linear(p: Params, name: str, x: jax.Array) -> jax.Array:
    y = x @ p[f"{name}.weight"].T
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + bias


def _layer_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def logreg(p: Params, image: jax.Array, label: jax.Array) -> jax.Array:
    """Loss of ``bench.models.LogReg``."""
    return _cross_entropy(_linear(p, "lin_layer", image), label)


def res_ffn(p: Params, image: jax.Array, label: jax.Array) -> jax.Array:
    """Loss of ``bench.models.ResFFN``."""
    x = jnp.tanh(_layer_norm(p, "norm1", _linear(p, "gemm1", image)))
    x = jax.nn.sigmoid(_layer_norm(p, "norm2", _linear(p, "gemm2", x)) + x)
    return _cross_entropy(_linear(p, "gemm3", x), label)


def _conv_pool(p: Params, name: str, x: jax.Array) -> jax.Array:
    y = lax.conv_general_dilated(
        x, p[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    y = jax.nn.relu(y + p[f"{name}.bias"][:, None, None])
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def lenet(p: Params, image: jax.Array, label: jax.Array) -> jax.Array:
    """Loss of ``bench.models.LeNet``."""
    x = _conv_pool(p, "conv2", _conv_pool(p, "conv1", image))
    x = jax.nn.relu(_linear(p, "fc1", x.reshape(len(x), -1)))
    return _cross_entropy(_linear(p, "fc3", jax.nn.relu(_linear(p, "fc2", x))), label)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    length = q.shape[1]
    scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def gpt(heads: int, layers: int) -> Loss:
    """Return the loss of ``bench.models.GPT`` with so many heads and layers."""

    def loss(p: Params, token_ids: jax.Array, targets: jax.Array) -> jax.Array:
        x = p["tokens.weight"][token_ids] + p["positions.weight"]
        batch, length, width = x.shape
        for i in range(layers):
            block = f"blocks.{i}"
            qkv = _linear(p, f"{block}.qkv", _layer_norm(p, f"{block}.norm1", x))
            q, k, v = (t.reshape(batch, length, heads, -1) for t in jnp.split(qkv, 3, axis=-1))
            y = _attention(q, k, v).reshape(batch, length, width)
            x = x + _linear(p, f"{block}.proj", y)
            y = _linear(p, f"{block}.up", _layer_norm(p, f"{block}.norm2", x))
            x = x + _linear(p, f"{block}.down", jax.nn.gelu(y, approximate=False))
        return _cross_entropy(_linear(p, "head", _layer_norm(p, "norm", x)), targets)

    return loss


SIMPLE: Mapping[str, Loss] = MappingProxyType(
    {"logreg": logreg, "res_ffn": res_ffn, "lenet": lenet}
)
"""Losses that need to know nothing but the parameters, by family."""
