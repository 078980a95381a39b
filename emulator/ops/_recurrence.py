"""What recurrent layers share: products with the state, slices over time, the step of an LSTM."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.products import plain_product
from emulator.ops._gemm import contract
from emulator.ops._reduction import sum_rows
from emulator.ops._reshape import rows_of

State = tuple[jax.Array, ...]


def lstm_gates(total: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Input and forget gate side by side, cell candidate, output gate."""
    size = total.shape[-1] // 4
    both, g, o = jnp.split(total, (2 * size, 3 * size), axis=-1)
    return jax.nn.sigmoid(both), jnp.tanh(g), jax.nn.sigmoid(o)


def lstm_state(both: jax.Array, g: jax.Array, o: jax.Array, c: jax.Array) -> State:
    i, f = jnp.split(both, 2, axis=-1)
    c = f * c + i * g
    return o * jnp.tanh(c), c


def recurrent_gates(h: jax.Array, turned: jax.Array) -> jax.Array:
    """From ``(B, H)`` and the turned weight ``(H, G)``: turned once, it is read as it lies."""
    return plain_product("bh,hg->bg", h.astype(turned.dtype), turned)


def state_gradient(dgates: jax.Array, weight: jax.Array) -> jax.Array:
    return plain_product("bg,gh->bh", dgates.astype(weight.dtype), weight)


def states_before(parts: State, first: State, reverse: bool) -> State:
    """The states that each step started from."""
    return tuple(
        jnp.concatenate([part[1:], start[None]] if reverse else [start[None], part[:-1]])
        for part, start in zip(parts, first, strict=True)
    )


def weight_gradients(
    dgates: jax.Array, before: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients of the recurrent weight and its bias, from all steps at once."""
    rows = rows_of(dgates)
    h = rows_of(before)
    dweight = contract("ng,nh->gh", rows.astype(weight.dtype), h.astype(weight.dtype))
    return dweight.astype(weight.dtype), sum_rows(rows)


def put_row(array: jax.Array, part: jax.Array, step: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(array, part, step, 0)


def row(array: jax.Array, step: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(array, step, keepdims=False)


def lstm_step(
    gx: jax.Array, gh: jax.Array, bias: jax.Array, c: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gates side by side, h and c."""
    both, g, o = lstm_gates(gx + (gh + bias))
    h, c = lstm_state(both, g, o, c)
    return jnp.concatenate((both, g, o), axis=-1), h, c


def lstm_step_gradients(
    gates: jax.Array, c: jax.Array, before: jax.Array, dy: jax.Array, dh: jax.Array, dc: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients of the gates and of the c before."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    tanh_c = jnp.tanh(c)
    dh = dh + dy
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    parts = (
        dc * g * i * (1 - i),
        dc * before * f * (1 - f),
        dc * i * (1 - g * g),
        dh * tanh_c * o * (1 - o),
    )
    return jnp.concatenate(parts, axis=-1), dc * f
