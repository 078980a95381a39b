"""An LSTM whose output is projected: the state h that goes from step to step is the narrow one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.unfused import compile_apart
from emulator.ops._gemm import contract
from emulator.ops._gradient import with_gradient
from emulator.ops._recurrence import (
    State,
    lstm_step,
    lstm_step_gradients,
    put_row,
    recurrent_gates,
    row,
    state_gradient,
    states_before,
    weight_gradients,
)
from emulator.ops._reshape import rows_of


def _forward(
    reverse: bool,
    gx: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    projection: jax.Array,
    state: State,
) -> tuple[tuple[jax.Array, State], tuple]:
    steps, batch, _ = gx.shape
    turned, turned_projection = weight.T, projection.T

    def step(k: jax.Array, carry: tuple) -> tuple:
        gates, wides, hs, cs, (h, c) = carry
        t = steps - 1 - k if reverse else k
        gh = recurrent_gates(h, turned)
        new, wide, c = compile_apart(lstm_step, row(gates, t), gh, bias, c)
        h = recurrent_gates(wide, turned_projection)
        kept = put_row(gates, new, t), put_row(wides, wide, t), put_row(hs, h, t)
        return *kept, put_row(cs, c, t), (h, c)

    narrow = jnp.zeros((steps, batch, projection.shape[0]), gx.dtype)
    wide = jnp.zeros((steps, batch, projection.shape[1]), gx.dtype)
    carry = (gx, wide, narrow, wide, state)
    gates, wides, hs, cs, final = lax.fori_loop(0, steps, step, carry)
    return (hs, final), (gates, wides, hs, cs, state, weight, projection)


def _backward(
    reverse: bool, saved: tuple, grads: tuple[jax.Array, State]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, State]:
    gates, wides, hs, cs, first, weight, projection = saved
    dys, dfinal = grads
    steps = gates.shape[0]
    before_h, before_c = states_before((hs, cs), first, reverse)

    def step(k: jax.Array, carry: tuple) -> tuple:
        gates, dhs, (dh, dc) = carry
        t = k if reverse else steps - 1 - k
        dh = dh + row(dys, t)
        dwide = state_gradient(dh, projection)
        at = (row(gates, t), row(cs, t), row(before_c, t), dwide)
        dgates, dc = compile_apart(lstm_step_gradients, *at, jnp.zeros_like(dwide), dc)
        return put_row(gates, dgates, t), put_row(dhs, dh, t), (state_gradient(dgates, weight), dc)

    carry = (gates, jnp.zeros_like(hs), dfinal)
    dgates, dhs, dstate = lax.fori_loop(0, steps, step, carry)
    dprojection = contract(
        "np,nh->ph",
        rows_of(dhs).astype(projection.dtype),
        rows_of(wides).astype(projection.dtype),
    ).astype(projection.dtype)
    dweight, dbias = weight_gradients(dgates, before_h, weight)
    return dgates, dweight, dbias, dprojection, dstate


@with_gradient(_forward, _backward, static=(0,))
def projected_scan(
    reverse: bool,
    gx: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    projection: jax.Array,
    state: State,
) -> tuple[jax.Array, State]:
    """Run an LSTM with a projection over time.

    Args:
        reverse: Whether the last step comes first.
        gx: Input gates ``(T, B, 4 * H)``, wide.
        weight: Recurrent weight ``(4 * H, P)``.
        bias: Recurrent bias ``(4 * H,)``, wide.
        projection: What makes h of the output of a step, ``(P, H)``.
        state: Initial h ``(B, P)`` and c ``(B, H)``, wide.

    Returns:
        Outputs ``(T, B, P)`` and the final state.
    """
    return _forward(reverse, gx, weight, bias, projection, state)[0]
