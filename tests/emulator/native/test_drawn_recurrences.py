"""Drawn recurrent layers by native kernels, against torch and against XLA's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings, strategies as st

from emulator.native import library, recurrence
from emulator.native.library import native_library, without_native
from emulator.native.recurrence import Cell, RecurrenceCall, call_recurrence
from emulator.ops import _native_recurrence as module, rnn
from tests.emulator.native.test_library import with_less_scratch

pytestmark = pytest.mark.skipif(native_library() is None, reason="there are no native kernels here")

_CELLS = {"lstm": rnn._lstm, "gru": rnn._gru, "tanh": rnn._rnn_tanh, "relu": rnn._rnn_relu}
_TARGET = "emulator_recurrence"
_EACH_STEP = 5e-7
"""Bound of the error that a step adds, relative to the largest value: the state's elements are
about 1, and so are the sums of its products."""
_NARROW = 2**-6
"""The same for a whole layer whose state is rounded to bfloat16 at each step: two sums that differ
in the last bit may be rounded to neighbours."""


@pytest.fixture(autouse=True)
def small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers are divided among threads, and none is left to XLA for its size."""
    take_small_ones(monkeypatch.setattr)


def take_small_ones(put: Any) -> None:
    """Leave no layer to XLA for its size: ``put(owner, name, value)`` sets the limits."""
    put(library, "_LEAST_OF_A_SHARE", 1)
    put(module, "_LEAST", 0)
    put(module, "_LEAST_ROWS", 0)


@contextmanager
def threads_of(count: int) -> Generator[None, None, None]:
    """XLA has so many threads, as far as calls are divided among them."""
    before, library.threads = library.threads, lambda: count
    try:
        yield
    finally:
        library.threads = before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    cell: str
    steps: int
    batch: int
    inputs: int
    width: int
    both_ways: bool
    biased: bool
    narrow: bool
    threads: int
    wanted: int | None
    bad: float | None
    place: float


@st.composite
def _layers(draw: st.DrawFn) -> _Case:
    return _Case(
        cell=draw(st.sampled_from(sorted(_CELLS))),
        steps=draw(st.integers(1, 9)),
        batch=draw(st.integers(1, 7)),
        inputs=draw(st.integers(1, 5)),
        width=draw(st.sampled_from([1, 2, 3, 7, 8, 16, 17, 33])),
        both_ways=draw(st.booleans()),
        biased=draw(st.booleans()),
        narrow=draw(st.integers(0, 3)) == 0,
        threads=draw(st.integers(1, 5)),
        wanted=draw(st.sampled_from([None, 0, 0, -1])),
        bad=draw(st.sampled_from([None, None, None, math.nan, math.inf, -math.inf, 1e-40, -200.0])),
        place=draw(st.floats(0, 1)),
    )


def _torch_layer(case: _Case) -> torch.nn.RNNBase:
    torch.manual_seed(case.steps * 100 + case.width)
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(case.cell, torch.nn.RNN)
    extra = {"nonlinearity": case.cell} if kind is torch.nn.RNN else {}
    return kind(
        case.inputs, case.width, bias=case.biased, bidirectional=case.both_ways, **extra
    )  # fmt: skip


def _is_wanted(case: _Case, place: int, count: int) -> bool:
    """Whether the loss is made of a result: most models read one alone."""
    return case.wanted is None or place == case.wanted % count


def _cotangent(shape: Sequence[int]) -> np.ndarray:
    return np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)


def _by_torch(
    case: _Case, layer: torch.nn.RNNBase, x: torch.Tensor, states: Sequence[torch.Tensor]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results and gradients; zeros where the loss does not depend on something."""
    leaves = [t.clone().requires_grad_() for t in (x, *states)]
    y, last = layer(leaves[0], tuple(leaves[1:]) if len(states) == 2 else leaves[1])
    results = [y, *(last if isinstance(last, tuple) else (last,))]
    total = sum(
        (r * torch.from_numpy(_cotangent(r.shape))).sum()
        for i, r in enumerate(results)
        if _is_wanted(case, i, len(results))
    )
    assert isinstance(total, torch.Tensor)
    inputs = [*leaves, *layer.parameters()]
    grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return [r.detach().numpy() for r in results], [g.numpy() for g in grads]


def _by_jax(case: _Case, arrays: Sequence[Any], count: int) -> tuple[list[Any], list[Any], int]:
    """Results, with and without a gradient; gradients; how many native kernels computed them."""
    dtype = jnp.bfloat16 if case.narrow else jnp.float32
    cell = _CELLS[case.cell]

    def total(values: list[jax.Array]) -> tuple[jax.Array, Any]:
        x, states, params = values[0], tuple(values[1 : 1 + count]), values[1 + count :]
        results = rnn._layers(
            cell, case.cell, x, states, params, case.biased, 1, 0.0, False, case.both_ways, False
        )
        each = [
            (r.astype(jnp.float32) * _cotangent(r.shape)).sum()
            for i, r in enumerate(results)
            if _is_wanted(case, i, len(results))
        ]
        return sum(each, jnp.zeros(())), results

    values = [jnp.array(a, dtype) for a in arrays]
    lowered = jax.jit(jax.value_and_grad(total, has_aux=True)).lower(values)
    (_, results), grads = lowered.compile()(values)
    alone = jax.jit(total)(values)[1]
    kept = [np.asarray(r, np.float32) for r in (*results, *alone)]
    slopes = [np.asarray(g, np.float32) for g in grads]
    return kept, slopes, lowered.as_text().count(_TARGET)


def check_layer(case: _Case) -> bool:
    """Compare a layer and its gradients with torch's and XLA's; whether it was native."""
    with threads_of(case.threads):
        return _check_layer(case)


def _check_layer(case: _Case) -> bool:
    layer = _torch_layer(case)
    draw = np.random.default_rng(case.batch)
    count = 2 if case.cell == "lstm" else 1
    state = (2 if case.both_ways else 1, case.batch, case.width)
    shapes = [(case.steps, case.batch, case.inputs), *[state] * count]
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    if case.bad is not None:
        array = arrays[int(case.place * (len(arrays) - 1))]
        array.flat[int(case.place * (array.size - 1))] = case.bad
    params = [p.detach().numpy() for p in layer.parameters()]
    got, slopes, native = _by_jax(case, [*arrays, *params], count)
    with without_native():
        other, other_slopes, plain = _by_jax(case, [*arrays, *params], count)
    assert not plain
    assert native in (0, 4 if case.both_ways else 2)
    references = [("xla", [*other, *other_slopes])]
    if not case.narrow:
        first, *rest = map(torch.from_numpy, arrays)
        by_torch = _by_torch(case, layer, first, rest)
        references.append(("torch", [*by_torch[0], *by_torch[0], *by_torch[1]]))
    for name, wanted in references:
        for ours, theirs in zip([*got, *slopes], wanted, strict=True):
            # A weight's gradient is a sum of products of gates' gradients and inputs.
            finite = np.concatenate([theirs.ravel(), arrays[0].ravel()])
            scale = max(1.0, float(np.abs(finite[np.isfinite(finite)]).max(initial=0.0)))
            bound = _NARROW if case.narrow else _EACH_STEP * case.steps
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=scale * bound, err_msg=f"{case}, {name}"
            )
    return native > 0


@given(case=_layers())
@settings(max_examples=8, deadline=None)
def test_layers(case: _Case) -> None:
    assert check_layer(case) or case.narrow


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("cell", sorted(_CELLS))
def test_five_hundred_layers(cell: str, turn: int) -> None:
    done = Counter[bool]()

    @seed(turn)
    @given(case=_layers().map(lambda case: replace(case, cell=cell)))
    @settings(max_examples=25, deadline=None)
    def run(case: _Case) -> None:
        done[check_layer(case)] += 1

    run()
    assert done[True] > 15, done


def test_the_bounds_bite() -> None:
    """A step that is left out, and a state that was rounded to bfloat16, are far outside."""
    case = _Case(
        cell="lstm", steps=4, batch=2, inputs=3, width=8, both_ways=False, biased=True,
        narrow=False, threads=2, wanted=None, bad=None, place=0.0,
    )  # fmt: skip
    layer = _torch_layer(case)
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y, (h, c) = layer(x[:2])
        rest = layer(x[2:], (h, c))[0]
        rounded = layer(x[2:], (h.bfloat16().float(), c))[0]
        without = layer(x[3:], (h, c))[0]
    bound = _EACH_STEP * case.steps
    assert float((rest - rounded).abs().max()) > 10 * bound
    assert float((rest[-1] - without[-1]).abs().max()) > 1000 * bound
    assert float((rest[0] - y[-1]).abs().max()) > _NARROW


def _one_step(cell: Cell, x: np.ndarray) -> np.ndarray:
    """What a step makes of its first gate, for a state and a weight of zeros."""
    call = RecurrenceCall(
        cell=cell, steps=1, batch=1, width=x.size, reverse=False, threads=1
    )  # fmt: skip
    gates = jnp.tile(jnp.asarray(x)[None, None], (1, 1, cell.gates))
    states = (jnp.zeros((1, x.size)),) * (2 if cell is Cell.LSTM else 1)
    weight, bias = (jnp.zeros((cell.gates * x.size, n)) for n in (x.size, 1))
    results = call_recurrence(call, gates, weight, bias[:, 0], states)
    return np.asarray(results[0]).ravel()[: x.size]


@pytest.mark.parametrize("cell", [Cell.TANH, Cell.LSTM])
def test_the_functions_of_cells(cell: Cell) -> None:
    """The hyperbolic tangent and the sigmoid, in units in the last place."""
    draw = np.random.default_rng(0)
    x = np.concatenate(
        [draw.uniform(-b, b, 300) for b in (0.01, 0.7, 10, 87)]
        + [np.array([0.625, -0.625, 1e-40, -1e-30, 0.0])]
    ).astype(np.float32)
    wide = x.astype(np.float64)
    exact = np.tanh(wide) if cell is Cell.TANH else 1 / (1 + np.exp(-wide))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    off = np.abs(_one_step(cell, x) - exact)
    assert float((off[np.abs(exact) > 1e-37] / unit[np.abs(exact) > 1e-37]).max()) < 3
    ends = _one_step(cell, np.array([math.nan, math.inf, -math.inf, 1e30, -1e30], np.float32))
    low = -1.0 if cell is Cell.TANH else 0.0
    np.testing.assert_array_equal(ends, [math.nan, 1, low, 1, low])


@pytest.mark.parametrize("wrong", ["weight", "type", "count", "scratch"])
def test_what_is_not_the_call_s_is_an_error(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads and writes no element beyond what it was made for."""
    call = RecurrenceCall(cell=Cell.TANH, steps=3, batch=2, width=8, reverse=False, threads=1)
    weight = jnp.ones((8, 8), "bfloat16" if wrong == "type" else "float32")
    states = (jnp.ones((2, 8)),) * (2 if wrong == "count" else 1)
    if wrong == "weight":
        weight = weight[:7]
    if wrong == "scratch":
        call = replace(call, cell=Cell.GRU)  # its step writes the product there
        with_less_scratch(monkeypatch)
    gates = jnp.ones((3, 2, call.cell.gates * 8))
    if wrong == "scratch":
        weight = jnp.ones((24, 8))
    run = jax.jit(lambda *a: call_recurrence(call, *a[:3], a[3:]))
    with pytest.raises(Exception, match="recurrence: shapes or types are not those"):
        jax.block_until_ready(run(gates, weight, jnp.ones(call.cell.gates * 8), *states))


def test_results_may_lie_apart_from_their_operands() -> None:
    call = RecurrenceCall(cell=Cell.RELU, steps=3, batch=2, width=8, reverse=True, threads=1)
    gates, weight = jnp.ones((3, 2, 8)), 0.1 * jnp.ones((8, 8))
    bias, h = jnp.ones(8), jnp.ones((2, 8))
    shapes = [jax.ShapeDtypeStruct(gates.shape, jnp.float32)]
    scratch = recurrence._scratch(call, False) or 0
    shapes.append(jax.ShapeDtypeStruct((scratch,), jnp.uint8))
    numbers: Any = {k: np.int64(n) for k, n in call.numbers(gradient=False).items()}
    numbers["scratch"] = np.int64(scratch)
    apart = jax.ffi.ffi_call(_TARGET, shapes)
    got = jax.jit(lambda *a: apart(*a, shape=np.asarray(call.shape, np.int64), **numbers)[0])
    (wanted,) = jax.jit(lambda *a: call_recurrence(call, *a[:3], a[3:]))(gates, weight, bias, h)
    np.testing.assert_array_equal(got(gates, weight, bias, h), wanted)
    np.testing.assert_array_equal(gates, 1)
