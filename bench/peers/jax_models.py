"""The cases' mathematics written by hand in jax, as one would without this project.

Parameters and buffers come as dicts under the names of torch's ``state_dict``. Every
function returns the mean loss of a batch and the buffers as the step leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import lax

from bench.peers.jax_layers import Params, cross_entropy, layer_norm, linear
from bench.peers.jax_resnet import resnet18

Loss = Callable[[Params, Params, jax.Array, jax.Array], tuple[jax.Array, Params]]


def logreg(p: Params, b: Params, image: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.LogReg``."""
    return cross_entropy(linear(p, "lin_layer", image), label), b


def res_ffn(p: Params, b: Params, image: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.ResFFN``."""
    x = jnp.tanh(layer_norm(p, "norm1", linear(p, "gemm1", image)))
    x = jax.nn.sigmoid(layer_norm(p, "norm2", linear(p, "gemm2", x)) + x)
    return cross_entropy(linear(p, "gemm3", x), label), b


def _conv_pool(p: Params, name: str, x: jax.Array) -> jax.Array:
    y = lax.conv_general_dilated(
        x, p[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    y = jax.nn.relu(y + p[f"{name}.bias"][:, None, None])
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def lenet(p: Params, b: Params, image: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.LeNet``."""
    x = _conv_pool(p, "conv2", _conv_pool(p, "conv1", image))
    x = jax.nn.relu(linear(p, "fc1", x.reshape(len(x), -1)))
    return cross_entropy(linear(p, "fc3", jax.nn.relu(linear(p, "fc2", x))), label), b


def _lstm_layer(p: Params, name: str, x: jax.Array) -> jax.Array:
    """Outputs of all times, time first, of one LSTM layer over ``x``, batch first."""
    ways = x.swapaxes(0, 1) @ p[f"{name}.weight_ih_l0"].T
    ways = ways + p[f"{name}.bias_ih_l0"] + p[f"{name}.bias_hh_l0"]
    recurrent = p[f"{name}.weight_hh_l0"].T

    def tick(
        carry: tuple[jax.Array, jax.Array], way: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        i, f, g, o = jnp.split(way + h @ recurrent, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((len(x), len(recurrent)), x.dtype)
    return lax.scan(tick, (start, start), ways)[1]


def lstm(p: Params, b: Params, sequence: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.LSTMClassifier``."""
    states = _lstm_layer(p, "lstm", sequence)
    return cross_entropy(linear(p, "head", states[-1]), label), b


def _count(p: Params) -> int:
    return sum(name.startswith("layers.") and name.endswith(".weight") for name in p)


def mlp_bf16(p: Params, b: Params, image: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.BF16MLP``."""
    x = image.astype(jnp.bfloat16)
    for i in range(_count(p)):
        x = jax.nn.relu(linear(p, f"layers.{i}", x))
    return cross_entropy(linear(p, "head", x).astype(jnp.float32), label), b


def chain(p: Params, b: Params, image: jax.Array, label: jax.Array) -> tuple[jax.Array, Params]:
    """Loss of ``bench.nets.Chain``."""
    x = jnp.tanh(image)
    for i in range(_count(p)):
        x = jnp.tanh(linear(p, f"layers.{i}", x))
    return cross_entropy(x, label), b


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    length = q.shape[1]
    scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def gpt(heads: int, layers: int) -> Loss:
    """Return the loss of ``bench.nets.GPT`` with so many heads and layers."""

    def loss(
        p: Params, b: Params, token_ids: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, Params]:
        x = p["tokens.weight"][token_ids] + p["positions.weight"]
        batch, length, width = x.shape
        for i in range(layers):
            block = f"blocks.{i}"
            qkv = linear(p, f"{block}.qkv", layer_norm(p, f"{block}.norm1", x))
            q, k, v = (t.reshape(batch, length, heads, -1) for t in jnp.split(qkv, 3, axis=-1))
            y = _attention(q, k, v).reshape(batch, length, width)
            x = x + linear(p, f"{block}.proj", y)
            y = linear(p, f"{block}.up", layer_norm(p, f"{block}.norm2", x))
            x = x + linear(p, f"{block}.down", jax.nn.gelu(y, approximate=False))
        head = "head" if "head.weight" in p else "tokens"
        return cross_entropy(linear(p, head, layer_norm(p, "norm", x)), targets), b

    return loss


SIMPLE: Mapping[str, Loss] = MappingProxyType(
    {
        "logreg": logreg,
        "res_ffn": res_ffn,
        "lenet": lenet,
        "lstm": lstm,
        "mlp_bf16": mlp_bf16,
        "chain": chain,
        "resnet18": resnet18,
    }
)
"""Losses that need to know nothing but the parameters, by family."""
