"""Times of the native kernels beside XLA's and torch's: ``python -m bench kernels``.

The candidates for a product or a convolution, and torch's kernel, are timed in turns; recurrent
layers with the native kernels and without them.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.sharding import SingleDeviceSharding

from bench.kernel_problems import Problem, Recurrence
from bench.process import seconds_of
from emulator.kernels import convolutions, products as product_kernels
from emulator.kernels.precision import compute_dtype
from emulator.kernels.problems import Convolution, Part, Product, applicable
from emulator.kernels.products import Spec
from emulator.native.library import without_native
from emulator.native.recurrence import Cell
from emulator.ops._native_recurrence import native_call
from emulator.ops.registry import load_ops
from emulator.plans.executable_cache import compiled_or_kept
from emulator.plans.fusion import trace_planned
from emulator.plans.xla_options import xla_options

_HOPELESS = 6.0
"""Time over the best one's from which a candidate is timed no more."""

_CHAIN = 16
_SMALL = 2 * 10**7
"""How often a problem of at most so many operations is computed in one executable: a step has many
of them, and starting an executable takes longer than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way to compute a problem.

    Args:
        name: Of the candidate; ``torch`` for torch's kernel.
        count: How often a call computes it.
        call: Computes it and waits.
    """

    name: str
    count: int
    call: Callable[[], object]


def _array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> jax.Array:
    return jnp.asarray(rng.standard_normal(tuple(shape), np.float32), dtype)


def _chained(compute: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The same several times, each with an element of the result before in its first operand."""

    def all_of(first: jax.Array, *rest: jax.Array) -> jax.Array:
        result = compute(first, *rest)
        for _ in range(count - 1):
            corner = lax.slice(result, (0,) * result.ndim, (1,) * result.ndim).reshape(-1)
            corner = jnp.clip(corner, -1, 1).astype(first.dtype).reshape((1,) * first.ndim)
            first = lax.dynamic_update_slice(first, corner, (0,) * first.ndim)
            result = compute(first, *rest)
        return result

    return all_of


def _compile_trial(
    name: str, compute: Callable[..., Any], arrays: Sequence[jax.Array], count: int
) -> Trial:
    # The others may be made of products, which are then XLA's own.
    with nullcontext() if name == "native" else without_native():
        traced: Any = jax.jit(_chained(compute, count)).trace(*arrays)
    device = jax.local_devices()[0]
    lowered = trace_planned(traced.jaxpr, 0, SingleDeviceSharding(device)).lower()
    run = compiled_or_kept(lowered, xla_options(device)).compiled
    return Trial(name=name, count=count, call=lambda: jax.block_until_ready(run(*arrays)))


def _count(problem: Problem) -> int:
    return _CHAIN if problem.operations <= _SMALL else 1


def _torch(array: jax.Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array.astype(jnp.float32))).to(
        getattr(torch, str(array.dtype))
    )


def _product_trials(p: Product, rng: np.random.Generator) -> Iterator[Trial]:
    left, right = "km" if p.turned_a else "mk", "nk" if p.turned_b else "kn"
    sizes = {"m": p.m, "k": p.k, "n": p.n}
    lead, batch = ((p.batch,), "b") if p.batch > 1 else ((), "")
    spec = Spec.of(f"{batch}{left},{batch}{right}->{batch}mn")
    a = _array(rng, (*lead, *(sizes[c] for c in left)), p.dtype)
    b = _array(rng, (*lead, *(sizes[c] for c in right)), p.dtype)
    for c in applicable(p, product_kernels.CANDIDATES):
        yield _compile_trial(c.name, functools.partial(c.run, spec), (a, b), _count(p))
    first, second = _torch(a), _torch(b)
    first = first.mT if p.turned_a else first
    second = second.mT if p.turned_b else second
    yield Trial(name="torch", count=1, call=lambda: torch.matmul(first, second))


def _last(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, 1, -1)


def _second(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, -1, 1)


def _convolution_trials(p: Convolution, rng: np.random.Generator) -> Iterator[Trial]:
    """Data lie channels last, as they do between two convolutions."""
    w_shape = (p.features, p.channels // p.groups, *p.window.kernel)
    x = _array(rng, (p.batch, *p.size, p.channels), p.dtype)
    g = _array(rng, (p.batch, *p.window.out, p.features), p.dtype)
    w = _array(rng, w_shape, p.dtype)
    arrays = {Part.FORWARD: (x, w), Part.INPUT_GRADIENT: (g, w), Part.WEIGHT_GRADIENT: (x, g)}
    for c in applicable(p, convolutions.CANDIDATES[p.part]):

        def compute(a: jax.Array, b: jax.Array, run: Callable[..., Any] = c.run) -> jax.Array:
            if p.part is Part.FORWARD:
                return _last(run(_second(a), b, p.window, p.groups))
            if p.part is Part.INPUT_GRADIENT:
                return _last(run(_second(a), b, p.window, p.groups, p.size))
            return run(_second(a), _second(b), p.window, p.groups, w_shape)

        yield _compile_trial(c.name, compute, arrays[p.part], _count(p))
    data, cotangent, kernels = _torch(_second(x)), _torch(_second(g)), _torch(w)
    if len(p.size) == 2:
        data = data.to(memory_format=torch.channels_last)
        cotangent = cotangent.to(memory_format=torch.channels_last)
    rest = (None, p.window.stride, p.window.low, p.window.dilation, False, (0,), p.groups)
    if p.part is Part.FORWARD:
        yield Trial(name="torch", count=1, call=lambda: torch.convolution(data, kernels, *rest))
        return
    which = (p.part is Part.INPUT_GRADIENT, p.part is Part.WEIGHT_GRADIENT, False)
    backward: Any = torch.ops.aten.convolution_backward
    yield Trial(
        name="torch", count=1, call=lambda: backward(cotangent, data, kernels, *rest, which)
    )


_LAYERS: Mapping[Cell, tuple[str, Callable[..., Any]]] = MappingProxyType(
    {
        Cell.LSTM: ("aten.lstm.input", torch.lstm),
        Cell.GRU: ("aten.gru.input", torch.gru),
        Cell.TANH: ("aten.rnn_tanh.input", torch.rnn_tanh),
    }
)
"""Each cell's layer: its operation, and torch's function of the same arguments."""

_HOW = (True, 1, 0.0, True, False, False)
"""With biases, one layer, no dropout, in training, one direction, steps first."""


def _recurrence_trials(p: Recurrence, rng: np.random.Generator) -> Iterator[Trial]:
    """A layer is computed once in an executable: its steps follow one another anyway."""
    name, layer = _LAYERS[p.cell]
    lower = load_ops()[name].lower
    x = _array(rng, (p.steps, p.batch, p.inputs), p.dtype)
    g = _array(rng, (p.steps, p.batch, p.width), p.dtype)
    shapes = ((p.gates, p.inputs), (p.gates, p.width), (p.gates,), (p.gates,))
    weights = [0.1 * _array(rng, shape, p.dtype) for shape in shapes]
    first = jnp.zeros((1, p.batch, p.width), p.dtype)
    states = (first, first) if p.cell is Cell.LSTM else first

    def compute(x: jax.Array, g: jax.Array, *weights: jax.Array) -> Any:
        def outputs(x: jax.Array, *weights: jax.Array) -> jax.Array:
            return lower(x, states, weights, *_HOW)[0]

        return jax.vjp(outputs, x, *weights)[1](g)

    gates = jnp.zeros((p.steps, p.batch, p.gates), compute_dtype(x.dtype))
    if native_call(p.cell, False, gates, weights[1], (first[0],)) is not None:
        yield _compile_trial("native", compute, (x, g, *weights), 1)
    yield _compile_trial("xla", compute, (x, g, *weights), 1)
    data, *tensors = [_torch(a).requires_grad_() for a in (x, *weights)]
    cotangent, start = _torch(g), _torch(first)
    start = (start, start) if p.cell is Cell.LSTM else start

    def by_torch() -> object:
        y = layer(data, start, tensors, *_HOW)[0]
        return torch.autograd.grad(y, [data, *tensors], cotangent)

    yield Trial(name="torch", count=1, call=by_torch)


def _seconds(call: Callable[[], object], count: int) -> float:
    return seconds_of(lambda: [call() for _ in range(count)]) / count


def _times(trials: Sequence[Trial], rounds: int, seconds: float) -> dict[str, float]:
    """Median seconds of each, all in turns; candidates without a chance once only."""
    first: dict[str, float] = {}
    for trial in trials:
        trial.call()
        first[trial.name] = min(_seconds(trial.call, 1) for _ in range(2)) / trial.count
    best = min(first.values())
    samples: dict[str, list[float]] = {name: [] for name in first}
    running = [t for t in trials if first[t.name] <= _HOPELESS * best]
    counts = {t.name: max(1, int(seconds / first[t.name] / t.count)) for t in running}
    for turn in range(rounds):
        for trial in running if turn % 2 else running[::-1]:
            samples[trial.name].append(_seconds(trial.call, counts[trial.name]) / trial.count)
    return {t.name: statistics.median(samples[t.name] or [first[t.name]]) for t in trials}


def measured(
    problems: Iterable[Problem], *, rounds: int, seconds: float
) -> Iterator[tuple[Problem, dict[str, float]]]:
    """Time all ways to compute some problems; wants a quiet machine.

    Args:
        problems: The problems.
        rounds: Turns of each way.
        seconds: Length of a turn.

    Returns:
        For each problem the seconds of each way: the candidates, which call no native kernel but
        the one that is named so, and torch.
    """
    rng = np.random.default_rng(0)
    for problem in dict.fromkeys(problems):
        match problem:
            case Product():
                trials = [*_product_trials(problem, rng)]
            case Convolution():
                trials = [*_convolution_trials(problem, rng)]
            case Recurrence():
                trials = [*_recurrence_trials(problem, rng)]
        yield problem, _times(trials, rounds, seconds)
