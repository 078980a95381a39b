"""A training step written by hand: one ``jax.jit`` with parameters, buffers and state donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from bench.case import AdamW, Batch, Case, Sgd
from bench.peers import Prepared
from bench.peers.jax_layers import Params
from bench.peers.jax_models import SIMPLE, Loss, gpt

State = tuple[Params, ...]
"""Momenta for SGD; first and second moments for AdamW."""


def loss_function(case: Case, params: Params) -> Loss:
    """Return the hand-written loss of a case."""
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
    """Return a copy: the step gives these buffers away."""
    if value.dtype is torch.bfloat16:
        return jnp.array(value.float().numpy(), jnp.bfloat16)
    return jnp.array(np.array(value.numpy()))


def prepare(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    settings = case.optimizer
    params = {name: _to_jax(value.detach()) for name, value in model.named_parameters()}
    buffers = {name: _to_jax(value) for name, value in model.named_buffers()}
    loss_of = loss_function(case, params)
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
