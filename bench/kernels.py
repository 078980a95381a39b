"""Times of the native kernels beside XLA's and torch's: ``python -m bench kernels``.

The candidates for a product or a convolution, and torch's kernel, are timed in turns, on the shapes
of layers that people train.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.sharding import SingleDeviceSharding

from bench.process import seconds_of
from emulator.kernels import convolutions, products as product_kernels
from emulator.kernels.problems import Convolution, Part, Product, applicable
from emulator.kernels.products import Spec
from emulator.kernels.windows import Window
from emulator.native.library import without_native
from emulator.plans.executable_cache import compiled_or_kept
from emulator.plans.fusion import trace_planned
from emulator.plans.xla_options import xla_options

__all__ = ["kinds", "measured", "title"]

_ROWS = (1, 8, 32, 96, 256, 1024, 4096)
_LAYERS = (
    *((64, 64), (64, 256), (256, 64), (128, 128), (256, 10), (256, 120), (784, 128)),
    *((128, 512), (256, 1024), (512, 2048), (384, 384), (384, 1536), (1536, 384)),
    *((768, 768), (1024, 1000), (1024, 1024), (384, 8192), (512, 5000), (27, 64), (576, 64)),
)
"""Input and output features of linear layers."""

_HEADS = tuple(itertools.product((8, 24, 96, 384), (16, 64, 128, 256, 512), (32, 64)))
"""Heads of all sequences together, their length, and features of a head."""

_MOST = 15 * 10**9
"""Floating point operations of the largest problem: half a second on a slow core."""

_IMAGES = (
    # images, channels, size, features, kernel, stride, groups
    *((32, 1, 28, 6, 5, 1, 1), (32, 6, 12, 16, 5, 1, 1), (256, 1, 28, 6, 5, 1, 1)),
    *((1, 1, 28, 6, 5, 1, 1), (1, 6, 12, 16, 5, 1, 1), (256, 6, 12, 16, 5, 1, 1)),
    *((32, 3, 32, 64, 3, 1, 1), (8, 3, 64, 16, 3, 1, 1), (8, 3, 64, 32, 3, 2, 1)),
    *((4, 16, 64, 16, 3, 1, 1), (4, 32, 64, 32, 3, 1, 1), (4, 32, 32, 64, 3, 1, 1)),
    *((8, 128, 16, 64, 3, 1, 1), (8, 64, 64, 32, 3, 1, 1), (8, 192, 32, 64, 3, 1, 1)),
    *((32, 64, 32, 64, 3, 1, 1), (32, 128, 16, 128, 3, 1, 1), (32, 256, 8, 256, 3, 1, 1)),
    *((32, 512, 4, 512, 3, 1, 1), (32, 64, 32, 128, 3, 2, 1), (32, 128, 16, 256, 3, 2, 1)),
    *((32, 256, 8, 512, 3, 2, 1), (8, 64, 32, 64, 3, 2, 1), (4, 3, 64, 64, 7, 2, 1)),
    *((32, 64, 32, 128, 1, 2, 1), (32, 128, 16, 256, 1, 2, 1), (32, 256, 8, 512, 1, 2, 1)),
    *((16, 64, 32, 128, 1, 1, 1), (16, 32, 32, 192, 1, 1, 1), (16, 192, 32, 32, 1, 1, 1)),
    *((16, 256, 8, 512, 1, 1, 1), (4, 64, 64, 10, 1, 1, 1), (8, 3, 32, 128, 4, 4, 1)),
    *((16, 128, 8, 64, 4, 2, 1), (16, 64, 16, 128, 4, 2, 1), (16, 32, 32, 64, 4, 2, 1)),
    *((16, 3, 64, 32, 4, 2, 1), (16, 256, 4, 128, 4, 2, 1), (4, 32, 32, 32, 2, 2, 1)),
    *((8, 16, 64, 32, 2, 2, 1), (8, 32, 32, 64, 2, 2, 1), (4, 3, 224, 768, 16, 16, 1)),
    *((16, 32, 32, 32, 3, 1, 32), (16, 128, 16, 128, 3, 1, 128), (16, 64, 32, 64, 3, 2, 64)),
    *((16, 256, 8, 256, 3, 1, 256), (8, 96, 16, 96, 7, 1, 96), (16, 128, 16, 128, 3, 2, 128)),
    *((16, 64, 16, 64, 3, 1, 8), (16, 128, 16, 128, 3, 1, 32)),
)
_SEQUENCES = (
    # sequences, channels, length, features, kernel, dilation, groups
    *((8, 1, 1024, 32, 2, 1, 1), (8, 32, 1024, 32, 2, 1, 1), (8, 32, 1024, 64, 2, 8, 1)),
    *((8, 32, 1024, 32, 3, 4, 1), (8, 64, 512, 64, 3, 1, 1), (16, 64, 256, 128, 5, 1, 1)),
    *((8, 32, 1024, 64, 1, 1, 1), (8, 64, 1024, 256, 1, 1, 1), (8, 64, 512, 64, 3, 64, 1)),
    *((8, 64, 256, 64, 3, 1, 64), (8, 256, 128, 256, 5, 1, 256)),
)
_VOLUMES = ((2, 1, 16, 8, 3, 1, 1), (2, 8, 16, 16, 3, 1, 1), (2, 16, 16, 32, 3, 2, 1))


def padding(kernel: int, stride: int, dilation: int) -> int:
    """Elements before and after an axis: half of a window's reach, none where they do not overlap.

    Args:
        kernel, stride, dilation: Along the axis.

    Example:
        >>> padding(3, 1, 2), padding(4, 4, 1)
        (2, 0)
    """
    return 0 if kernel == stride else dilation * (kernel - 1) // 2


def product_problems() -> Iterator[Product]:
    """Products of linear layers and of attention, forward and of both gradients."""
    for dtype in ("float32", "bfloat16"):
        for rows, (i, o) in itertools.product(_ROWS, _LAYERS):
            if 2 * rows * i * o > _MOST:
                continue
            for m, k, n, a, b in (
                (rows, i, o, False, True),
                (rows, o, i, False, False),
                (o, rows, i, True, False),
            ):
                yield Product(dtype=dtype, turned_a=a, turned_b=b, batch=1, m=m, k=k, n=n)
        for batch, t, d in _HEADS:
            if 2 * batch * t * t * d > _MOST // 4:
                continue
            for m, k, n, a, b in (
                (t, d, t, False, True),
                (t, t, d, False, False),
                (t, t, d, True, False),
            ):
                yield Product(dtype=dtype, turned_a=a, turned_b=b, batch=batch, m=m, k=k, n=n)


def convolution_problems() -> Iterator[Convolution]:
    """Convolutions over one, two and three axes, forward and both gradients."""
    shapes = [(2, *row[:6], 1, row[6]) for row in _IMAGES]
    shapes += [(1, *row[:5], 1, *row[5:]) for row in _SEQUENCES]
    shapes += [(3, *row[:6], 1, row[6]) for row in _VOLUMES]
    for n, batch, channels, size, features, kernel, stride, dilation, groups in shapes:
        side = padding(kernel, stride, dilation)
        window = Window(
            kernel=(kernel,) * n,
            stride=(stride,) * n,
            dilation=(dilation,) * n,
            low=(side,) * n,
            high=(side,) * n,
            out=((size + 2 * side - dilation * (kernel - 1) - 1) // stride + 1,) * n,
        )
        data, kernels = (batch, channels, *(size,) * n), (features, channels // groups)
        for part in Part:
            yield Convolution.of(part, "float32", data, (*kernels, *window.kernel), window, groups)


_HOPELESS = 6.0
"""Time over the best one's from which a candidate is timed no more."""

_CHAIN = 16
_SMALL = 2 * 10**7
"""How often a problem of at most so many operations is computed in one executable: a step has many
of them, and starting an executable takes longer than one."""

Problem = Product | Convolution


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


def title(p: Problem) -> str:
    """A problem in one line.

    Example:
        >>> shape = {"turned_a": False, "turned_b": True, "batch": 1, "m": 8, "k": 2, "n": 3}
        >>> title(Product(dtype="float32", **shape))
        'product float32 nt 1x8x2x3'
    """
    if isinstance(p, Product):
        form = "".join("t" if turned else "n" for turned in (p.turned_a, p.turned_b))
        return f"product {p.dtype} {form} {p.batch}x{p.m}x{p.k}x{p.n}"
    w = p.window
    sizes = "x".join(map(str, (p.batch, *p.size, p.channels, p.features)))
    part = p.part.name.lower().replace("_", " ")
    rest = f"kernel {w.kernel[0]} stride {w.stride[0]} dilation {w.dilation[0]} groups {p.groups}"
    return f"convolution {len(p.size)}d {part} {sizes} {rest}"


def kinds(text: str) -> list[Problem]:
    """Problems of this file whose titles hold a text.

    Args:
        text: A part of :func:`title`.

    Example:
        >>> {p.part.name for p in kinds("2d weight gradient")}
        {'WEIGHT_GRADIENT'}
    """
    every: list[Problem] = [*convolution_problems(), *product_problems()]
    return [problem for problem in every if text in title(problem)]


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
        if isinstance(problem, Product):
            trials = [*_product_trials(problem, rng)]
        else:
            trials = [*_convolution_trials(problem, rng)]
        yield problem, _times(trials, rounds, seconds)
