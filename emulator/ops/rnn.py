"""Lowerings of recurrent layers and cells.

The input products of all steps are one GEMM before the loop, and the gradient of the
recurrent weight is one GEMM after it: only the product with the state stays inside. The loop is
a native kernel where there is one (:mod:`emulator.ops._native_recurrence`), else a loop of XLA's,
and then so is its product: a call of oneDNN would be set up again at every step. What such a step
does to its gates is compiled apart from the slices of the arrays over time: fused with them,
XLA:CPU takes element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import widen
from emulator.kernels.unfused import compile_apart
from emulator.native.recurrence import Cell as NativeCell
from emulator.op_facts.facts import ALL_INPUTS
from emulator.ops._contractions import contract
from emulator.ops._gradient import with_gradient
from emulator.ops._native_recurrence import native_call, native_scan
from emulator.ops._recurrence import (
    State,
    lstm_gates,
    lstm_scan,
    lstm_state,
    recurrent_gates,
    state_gradient,
    states_before,
    weight_gradients,
)
from emulator.ops._reshape import rows_of
from emulator.ops.random import drop_factors
from emulator.ops.registry import op

Cell = Callable[[jax.Array, jax.Array, State], State]
"""``(input gates, recurrent gates, state) -> state``; the first part of a state is the output."""


def _lstm(gx: jax.Array, gh: jax.Array, state: State) -> State:
    return lstm_state(*lstm_gates(gx + gh), state[1])


def _gru(gx: jax.Array, gh: jax.Array, state: State) -> State:
    xr, xz, xn = jnp.split(gx, 3, axis=-1)
    hr, hz, hn = jnp.split(gh, 3, axis=-1)
    z = jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
    return (n + z * (state[0] - n),)


def _rnn_tanh(gx: jax.Array, gh: jax.Array, state: State) -> State:
    del state
    return (jnp.tanh(gx + gh),)


def _rnn_relu(gx: jax.Array, gh: jax.Array, state: State) -> State:
    del state
    y = gx + gh
    return (jnp.where(y <= 0, jnp.zeros((), y.dtype), y),)


_ADDITIVE = frozenset({_lstm, _rnn_tanh, _rnn_relu})
"""Cells that read the sum of their gates only: one gradient serves both."""


_NATIVE: dict[Cell, NativeCell] = {
    _lstm: NativeCell.LSTM,
    _gru: NativeCell.GRU,
    _rnn_tanh: NativeCell.TANH,
    _rnn_relu: NativeCell.RELU,
}
"""The native kernels' names of cells."""


def _scan_forward(
    cell: Cell, reverse: bool, gx: jax.Array, weight: jax.Array, bias: jax.Array, state: State
) -> tuple[tuple[jax.Array, State], tuple]:
    turned = weight.T

    def step(state: State, gates: jax.Array) -> tuple[State, tuple[State, jax.Array]]:
        gh = recurrent_gates(state[0], turned)
        new, residual = compile_apart(_step_of(cell), gates, gh, bias, state)
        return new, (new, residual)

    final, (states, residuals) = lax.scan(step, state, gx, reverse=reverse)
    gates = (residuals,) if cell in _ADDITIVE else (gx, residuals)
    return (states[0], final), (gates, states, state, weight)


@cache
def _step_of(
    cell: Cell,
) -> Callable[[jax.Array, jax.Array, jax.Array, State], tuple[State, jax.Array]]:
    """A step's new state, and what the backward pass needs beside the input gates."""

    def additive(
        gx: jax.Array, gh: jax.Array, bias: jax.Array, state: State
    ) -> tuple[State, jax.Array]:
        total = gx + (gh + bias)
        return cell(total, jnp.zeros((), total.dtype), state), total

    def other(
        gx: jax.Array, gh: jax.Array, bias: jax.Array, state: State
    ) -> tuple[State, jax.Array]:
        gh = gh + bias
        return cell(gx, gh, state), gh

    return additive if cell in _ADDITIVE else other


@cache
def _pulled_back(cell: Cell) -> Callable[[State, jax.Array, State, State], tuple[State, State]]:
    """Gradients of a cell's gates and state from those of its results."""

    def run(gates: State, state: State) -> State:
        gx, gh = gates if len(gates) == 2 else (gates[0], jnp.zeros((), gates[0].dtype))
        return cell(gx, gh, state)

    def pull(dstate: State, dy: jax.Array, gates: State, state: State) -> tuple[State, State]:
        return jax.vjp(run, gates, state)[1]((dstate[0] + dy, *dstate[1:]))

    return pull


def _scan_backward(
    cell: Cell, reverse: bool, saved: tuple, grads: tuple[jax.Array, State]
) -> tuple[jax.Array, jax.Array, jax.Array, State]:
    gates, states, first, weight = saved
    dys, dfinal = grads
    before = states_before(states, first, reverse)

    def step(dstate: State, at: tuple) -> tuple[State, State]:
        dgates, dprevious = compile_apart(_pulled_back(cell), dstate, *at)
        back = state_gradient(dgates[-1], weight)
        return (dprevious[0] + back, *dprevious[1:]), dgates

    dstate, dgates = lax.scan(step, dfinal, (dys, gates, before), reverse=not reverse)
    return dgates[0], *weight_gradients(dgates[-1], before[0], weight), dstate


@with_gradient(_scan_backward, forward=_scan_forward, static=(0, 1))
def _scan(
    cell: Cell, reverse: bool, gx: jax.Array, weight: jax.Array, bias: jax.Array, state: State
) -> tuple[jax.Array, State]:
    """Run a cell over time.

    Args:
        cell: What one step does.
        reverse: Whether the last step comes first.
        gx: Input gates ``(T, B, G)``, wide.
        weight: Recurrent weight ``(G, H)``.
        bias: Recurrent bias ``(G,)``, wide.
        state: Initial state, wide ``(B, H)`` arrays.

    Returns:
        Outputs ``(T, B, H)`` and the final state.
    """
    return _scan_forward(cell, reverse, gx, weight, bias, state)[0]


def _direction(
    cell: Cell, x: jax.Array, params: Sequence[jax.Array], biased: bool, state: State, reverse: bool
) -> tuple[jax.Array, State]:
    """One layer in one direction: x ``(T, B, I)``, wide result ``(T, B, H)``."""
    w_ih, w_hh = params[:2]
    t, b, _ = x.shape
    gx = contract("ni,gi->ng", rows_of(x), w_ih)
    bias = jnp.zeros(w_hh.shape[0], gx.dtype)
    if biased and cell in _ADDITIVE:
        bias = widen(params[2]) + widen(params[3])
    elif biased:
        gx, bias = gx + widen(params[2]), widen(params[3])
    gx, state = gx.reshape(t, b, gx.shape[-1]), tuple(map(widen, state))
    if not _is_projected(state):
        call = native_call(_NATIVE[cell], reverse, gx, w_hh, state)
        if call is not None:
            return native_scan(call, gx, w_hh, bias, state)
    if cell is _lstm:
        projection = params[-1] if _is_projected(state) else None
        return lstm_scan(reverse, gx, w_hh, bias, projection, state)
    return _scan(cell, reverse, gx, w_hh, bias, state)


def _is_projected(states: State) -> bool:
    """Whether an LSTM projects its h: as torch, this tells it from the widths of h and c."""
    return len(states) == 2 and states[0].shape[-1] != states[1].shape[-1]


def _layers(
    cell: Cell,
    name: str,
    x: jax.Array,
    hx: jax.Array | Sequence[jax.Array],
    params: Sequence[jax.Array],
    has_biases: bool,
    num_layers: int,
    dropout: float | jax.Array,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    seed: jax.Array | None = None,
    stream: int = 0,
) -> State:
    """All layers; returns the output and the final states, each ``(layers * directions, B, H)``.

    The arguments behind the first two are those of torch's op.
    """
    states = _states(hx)
    if batch_first:
        x = x.swapaxes(0, 1)
    directions = 2 if bidirectional else 1
    factors = None
    if train and num_layers > 1:
        between = (num_layers - 1, *x.shape[:2], directions * states[0].shape[-1])
        factors = drop_factors(between, x.dtype, dropout, seed, stream, op=name)
    each = (4 if has_biases else 2) + _is_projected(states)
    finals: list[State] = []
    for layer in range(num_layers):
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            y, final = _direction(
                cell,
                x,
                params[at * each : (at + 1) * each],
                has_biases,
                tuple(s[at] for s in states),
                direction == 1,
            )
            outs.append(y.astype(x.dtype))
            finals.append(tuple(f.astype(x.dtype) for f in final))
        x = outs[0] if directions == 1 else jnp.concatenate(outs, axis=-1)
        if factors is not None and layer < num_layers - 1:
            x = x * factors[layer]
    hidden = [jnp.stack(parts) for parts in zip(*finals, strict=True)]
    return x.swapaxes(0, 1) if batch_first else x, *hidden


def _states(hx: jax.Array | Sequence[jax.Array]) -> State:
    """The state or states that a layer starts from: an LSTM has h and c."""
    return (hx,) if isinstance(hx, jax.Array) else tuple(hx)


def _register(name: str, cell: Cell, flops: int, scratch: str) -> None:
    """Register a layer; an element of a state takes so many operations in a step."""

    @op(
        name,
        loops=True,
        random=True,
        flops=("gates", flops),
        products="recurrent",
        scratch=scratch,
        rate=5,
        rounds=ALL_INPUTS,
    )
    def lower(*arguments: Any, **drawn: Any) -> State:
        return _layers(cell, name, *arguments, **drawn)


_register("aten.lstm.input", _lstm, 30, "lstm")
_register("aten.gru.input", _gru, 20, "gru")
_register("aten.rnn_tanh.input", _rnn_tanh, 5, "rnn")
_register("aten.rnn_relu.input", _rnn_relu, 5, "rnn")


def _register_cell(name: str, cell: Cell, flops: int) -> None:
    """Register one step of a layer; an LSTM gives h and c, others h alone."""

    @op(name, flops=("results", flops), products="cell")
    def lower(
        x: jax.Array,
        hx: jax.Array | Sequence[jax.Array],
        w_ih: jax.Array,
        w_hh: jax.Array,
        b_ih: jax.Array | None = None,
        b_hh: jax.Array | None = None,
    ) -> jax.Array | State:
        state = _states(hx)
        gx = contract("bi,gi->bg", x, w_ih)
        gx = gx if b_ih is None else gx + widen(b_ih)
        gh = contract("bh,gh->bg", state[0], w_hh)
        gh = gh if b_hh is None else gh + widen(b_hh)
        h, *rest = (part.astype(x.dtype) for part in cell(gx, gh, tuple(map(widen, state))))
        return (h, *rest) if rest else h


_register_cell("aten.lstm_cell.default", _lstm, 30)
_register_cell("aten.gru_cell.default", _gru, 20)
_register_cell("aten.rnn_tanh_cell.default", _rnn_tanh, 5)
_register_cell("aten.rnn_relu_cell.default", _rnn_relu, 5)
