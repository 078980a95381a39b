"""The cases' mathematics and training step by hand in jax, as one would without this project.

Parameters and buffers come as dicts under the names of torch's ``state_dict``. Every loss function
returns the mean loss of a batch and the buffers as the step leaves them. A step is one ``jax.jit``
with parameters, buffers and the optimizer's state donated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import nn

from bench.case import AdamW, Batch, Case, Sgd
from bench.peers import Prepared

Params = dict[str, jax.Array]
Loss = Callable[[Params, Params, jax.Array, jax.Array], tuple[jax.Array, Params]]


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


# ResNet-18 has its channels last inside, as convolutions in jax are usually written. Weights keep
# torch's layout; their transposes are small beside the convolutions.

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

State = tuple[Params, ...]
"""Momenta for SGD; first and second moments for AdamW."""


def _loss_function(case: Case, params: Params) -> Loss:
    if case.family == "gpt":
        layers = sum(name.endswith(".qkv.weight") for name in params)
        return gpt(case.heads, layers)
    return SIMPLE[case.family]


def _sgd(c: Sgd, p: Params, g: Params, state: State) -> tuple[Params, State]:
    (momenta,) = state
    momenta = {k: c.momentum * momenta[k] + g[k] + c.weight_decay * p[k] for k in p}
    return {k: p[k] - c.lr * momenta[k] for k in p}, (momenta,)


def _adamw(c: AdamW, p: Params, g: Params, state: State, count: jax.Array) -> tuple[Params, State]:
    first, second = state
    beta1, beta2 = c.betas
    first = {k: beta1 * first[k] + (1 - beta1) * g[k] for k in p}
    second = {k: beta2 * second[k] + (1 - beta2) * g[k] * g[k] for k in p}
    rate = c.lr / (1 - beta1**count)
    scale = jnp.sqrt(1 - beta2**count)
    new = {
        k: p[k] * (1 - c.lr * c.weight_decay)
        - rate * first[k] / (jnp.sqrt(second[k]) / scale + c.eps)
        for k in p
    }
    return new, (first, second)


def _to_jax(value: torch.Tensor) -> jax.Array:
    """Return a copy, since the step donates its buffers."""
    if value.dtype is torch.bfloat16:
        return jnp.array(value.float().numpy(), jnp.bfloat16)
    return jnp.array(np.array(value.numpy()))


def jax_step(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    settings = case.optimizer
    params = {name: _to_jax(value.detach()) for name, value in model.named_parameters()}
    buffers = {name: _to_jax(value) for name, value in model.named_buffers()}
    loss_of = _loss_function(case, params)
    moments = 1 if isinstance(settings, Sgd) else 2
    state = tuple({k: jnp.zeros_like(v) for k, v in params.items()} for _ in range(moments))
    count = jnp.zeros((), jnp.float32)

    def update(
        p: Params, b: Params, s: State, n: jax.Array, x: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, Params, Params, State, jax.Array]:
        (loss, b), g = jax.value_and_grad(loss_of, has_aux=True)(p, b, x, y)
        n = n + 1
        if isinstance(settings, Sgd):
            p, s = _sgd(settings, p, g, s)
        else:
            p, s = _adamw(settings, p, g, s, n)
        return loss, p, b, s, n

    compiled = jax.jit(update, donate_argnums=(0, 1, 2, 3))

    def step(batch: Batch) -> float:
        nonlocal params, buffers, state, count
        loss, params, buffers, state, count = compiled(params, buffers, state, count, *batch)
        return float(loss)

    return lambda batch: batch, step
