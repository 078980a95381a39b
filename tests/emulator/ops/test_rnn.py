"""Recurrent layers and cells against torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.random import MissingSeed
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check, to_jax
from tests.emulator.ops.narrow import check_narrow

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
INPUT, HIDDEN, STEPS, BATCH = 4, 5, 6, 3


class Source:
    """Random tensors, each different from the last."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator) * 0.5


def layer(
    kind: str,
    layers: int,
    bidirectional: bool,
    bias: bool,
    batch_first: bool,
    projected: int = HIDDEN,
) -> list[Any]:
    """Arguments of ``aten.<kind>.input`` up to the weights."""
    new, directions, width = Source(), 1 + bidirectional, GATES[kind] * HIDDEN
    weights = []
    for number in range(layers):
        size = projected * directions if number else INPUT
        for _ in range(directions):
            weights += [new(width, size), new(width, projected)]
            weights += [new(width), new(width)] if bias else []
            weights += [new(projected, HIDDEN)] if projected != HIDDEN else []
    x = new(BATCH, STEPS, INPUT) if batch_first else new(STEPS, BATCH, INPUT)
    state = [new(layers * directions, BATCH, size) for size in (projected, HIDDEN)]
    return [x, state if kind == "lstm" else state[0], weights]


@cases("kind", list(GATES), every=2)
@cases(
    ("layers", "bidirectional", "bias", "batch_first"),
    [(2, True, True, True), (1, False, False, False)],
)
def test_layers(kind: str, layers: int, bidirectional: bool, bias: bool, batch_first: bool) -> None:
    args = layer(kind, layers, bidirectional, bias, batch_first)
    check(f"aten.{kind}.input", *args, bias, layers, 0.0, True, bidirectional, batch_first)


@cases(
    ("layers", "bidirectional", "bias", "batch_first"),
    [(2, True, True, True), (1, False, False, False), (3, True, False, False)],
    every=3,
)
def test_projected_lstm(layers: int, bidirectional: bool, bias: bool, batch_first: bool) -> None:
    args = layer("lstm", layers, bidirectional, bias, batch_first, projected=2)
    check("aten.lstm.input", *args, bias, layers, 0.0, True, bidirectional, batch_first)


def test_eval_and_other_types() -> None:
    args = layer("lstm", 2, False, True, False)
    check("aten.lstm.input", *args, True, 2, 0.5, False, False, False, grad=False)  # no dropout
    x, state, weights = layer("gru", 1, False, True, False)
    double = (x.double(), state.double(), [w.double() for w in weights])
    flags = (True, 1, 0.0, True, False, False)
    check("aten.gru.input", *double, *flags)
    check_narrow("aten.lstm.input", *layer("lstm", 1, False, True, False), *flags)
    check_narrow("aten.lstm.input", *layer("lstm", 1, False, True, False, projected=2), *flags)


@cases(
    ("kind", "bias"),
    [("lstm", True), ("gru", True), ("gru", False), ("rnn_tanh", True), ("rnn_relu", False)],
)
def test_cells(kind: str, bias: bool) -> None:
    new, width = Source(), GATES[kind] * HIDDEN
    state = [new(BATCH, HIDDEN), new(BATCH, HIDDEN)]
    weights = [new(width, INPUT), new(width, HIDDEN)]
    weights += [new(width), new(width)] if bias else []
    hidden = state if kind == "lstm" else state[0]
    check(f"aten.{kind}_cell.default", new(BATCH, INPUT), hidden, *weights)


def outputs(*calls: Any) -> list[np.ndarray]:
    """What LSTMs with dropout give in one program: for each layers, rate and named arguments."""
    lower = load_ops()["aten.lstm.input"].lower

    def run(x: jax.Array) -> list[jax.Array]:
        return [
            lower(x, *arguments[layers], True, layers, rate, True, False, False, **more)[0]
            for layers, rate, more in calls
        ]

    with jax.enable_x64(True):
        arguments = {}
        for layers in (1, 2):
            x, state, weights = layer("lstm", layers, False, True, False)
            arguments[layers] = [to_jax(s) for s in state], [to_jax(w) for w in weights]
        return [np.asarray(out) for out in jax.jit(run)(to_jax(x))]


def test_dropout_between_layers() -> None:
    seed = {"seed": jnp.array([3, 0], jnp.uint32)}
    with jax.enable_x64(True):
        some, none = jnp.asarray(0.4, jnp.float64), jnp.asarray(0.0, jnp.float64)
    found = outputs(
        (2, 0.4, {**seed, "stream": 1}),
        (2, some, {**seed, "stream": 1}),  # a rate may be an array
        (2, 0.4, {**seed, "stream": 2}),
        (2, 0.0, {}),
        (2, none, seed),
        (1, 0.4, {}),  # there is nothing between
        (1, 0.0, {}),
    )
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
    np.testing.assert_array_equal(found[3], found[4])
    np.testing.assert_array_equal(found[5], found[6])


def test_dropout_without_seed() -> None:
    with pytest.raises(MissingSeed, match=r"aten\.lstm\.input"):
        outputs((2, 0.4, {}))


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_gates_are_not_fused_with_slices_over_time(kind: str) -> None:
    """XLA:CPU takes elementwise work element by element where such a slice is fused into it."""
    x, state, weights = layer(kind, 1, False, True, False)
    states = [to_jax(s) for s in state] if kind == "lstm" else to_jax(state)
    params, lower = [to_jax(w) for w in weights], load_ops()[f"aten.{kind}.input"].lower

    def loss(x: jax.Array, params: list[jax.Array]) -> jax.Array:
        return lower(x, states, params, True, 1, 0.0, True, False, False)[0].sum()

    text = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(to_jax(x), params).compile().as_text()
    fused = [part for part in text.split("\n\n") if part.lstrip().startswith("%fused_computation")]
    sliced = [part for part in fused if " dynamic-slice(" in part]
    assert text.count(" while(") == 2
    assert sliced
    for part in sliced:
        assert not [op for op in ("tanh", "exponential", "multiply") if f" {op}(" in part], part
