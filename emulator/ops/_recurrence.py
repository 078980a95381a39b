"""What recurrent layers share: products with the state, slices over time, the step of an LSTM."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.products import plain_product
from emulator.kernels.unfused import compile_apart
from emulator.ops._contractions import contract
from emulator.ops._gradient import with_gradient
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


# -- an LSTM over time; where its output is projected, h between steps is the narrow one --


def _forward(
    reverse: bool,
    gx: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    projection: jax.Array | None,
    state: State,
) -> tuple[tuple[jax.Array, State], tuple]:
    steps, batch, width = gx.shape
    turned = weight.T
    turned_projection = None if projection is None else projection.T

    def step(k: jax.Array, carry: tuple) -> tuple:
        gates, wides, hs, cs, (h, c) = carry
        t = steps - 1 - k if reverse else k
        gh = recurrent_gates(h, turned)
        new, h, c = compile_apart(lstm_step, row(gates, t), gh, bias, c)
        # The gates take the place of their inputs: no second array of that size.
        gates = put_row(gates, new, t)
        if turned_projection is not None:
            wides = put_row(wides, h, t)
            h = recurrent_gates(h, turned_projection)
        return gates, wides, put_row(hs, h, t), put_row(cs, c, t), (h, c)

    wide = jnp.zeros((steps, batch, width // 4), gx.dtype)
    if projection is None:
        carry = (gx, None, wide, wide, state)
    else:
        narrow = jnp.zeros((steps, batch, projection.shape[0]), gx.dtype)
        carry = (gx, wide, narrow, wide, state)
    gates, wides, hs, cs, final = lax.fori_loop(0, steps, step, carry)
    return (hs, final), (gates, wides, hs, cs, state, weight, projection)


def _backward(
    reverse: bool, saved: tuple, grads: tuple[jax.Array, State]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, State]:
    gates, wides, hs, cs, first, weight, projection = saved
    dys, dfinal = grads
    steps = gates.shape[0]
    before_h, before_c = states_before((hs, cs), first, reverse)

    def step(k: jax.Array, carry: tuple) -> tuple:
        gates, dhs, (dh, dc) = carry
        t = k if reverse else steps - 1 - k
        at = (row(gates, t), row(cs, t), row(before_c, t))
        dy = row(dys, t)
        if projection is not None:
            dh = dh + dy
            dhs = put_row(dhs, dh, t)
            dy = state_gradient(dh, projection)
            dh = jnp.zeros_like(dy)
        dgates, dc = compile_apart(lstm_step_gradients, *at, dy, dh, dc)
        return put_row(gates, dgates, t), dhs, (state_gradient(dgates, weight), dc)

    dhs = None if projection is None else jnp.zeros_like(hs)
    dgates, dhs, dstate = lax.fori_loop(0, steps, step, (gates, dhs, dfinal))
    dprojection = None
    if projection is not None:
        rows = (rows_of(a).astype(projection.dtype) for a in (dhs, wides))
        dprojection = contract("np,nh->ph", *rows).astype(projection.dtype)
    dweight, dbias = weight_gradients(dgates, before_h, weight)
    return dgates, dweight, dbias, dprojection, dstate


@with_gradient(_backward, forward=_forward, static=(0,))
def lstm_scan(
    reverse: bool,
    gx: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    projection: jax.Array | None,
    state: State,
) -> tuple[jax.Array, State]:
    """Run an LSTM over time.

    Its gates are kept, so that the backward pass takes no exponentials but those of ``tanh(c)``.

    Args:
        reverse: Whether the last step comes first.
        gx: Input gates ``(T, B, 4 * H)``, wide.
        weight: Recurrent weight ``(4 * H, P)``; P is H without a projection.
        bias: Recurrent bias ``(4 * H,)``, wide.
        projection: What makes h of the output of a step, ``(P, H)``; None if that is h itself.
        state: Initial h ``(B, P)`` and c ``(B, H)``, wide.

    Returns:
        Outputs ``(T, B, P)`` and the final state.
    """
    return _forward(reverse, gx, weight, bias, projection, state)[0]
