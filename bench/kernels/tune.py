"""Times every candidate on every shape, and makes the processor's rule of it."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding

from bench.kernels import problems
from emulator.kernels import convolutions, products as product_kernels
from emulator.kernels.choice import Candidate, applicable
from emulator.kernels.problems import Convolution, Part, Problem, Product
from emulator.kernels.rules import PLAIN, Measured, Rule, chosen_by
from emulator.kernels.unkept import kept_nowhere
from emulator.kernels.windows import Window
from emulator.plans.executable_cache import compiled_or_kept, xla_options
from emulator.plans.fusion import trace_planned
from emulator.processor import processor

__all__ = ["about", "merged", "of_category", "tune"]

_HOPELESS = 6.0
"""Time over the best one's from which a candidate is timed no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate, compiled for one problem.

    Args:
        name: Of the candidate.
        count: How often a call computes it.
        call: Computes it and waits.
    """

    name: str
    count: int
    call: Callable[[], object]


def _array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> jax.Array:
    return jnp.asarray(rng.standard_normal(tuple(shape), np.float32), dtype)


_CHAIN = 16
_SMALL = 2 * 10**7
"""How often a problem of at most so many operations is computed in one executable: a step has many
of them, and starting an executable takes longer than one."""


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


def _compiled(
    name: str, compute: Callable[..., Any], arrays: Sequence[jax.Array], count: int
) -> Trial:
    with chosen_by(PLAIN):  # what a candidate is made of is no other's choice
        traced: Any = jax.jit(_chained(compute, count)).trace(*arrays)
    device = jax.local_devices()[0]
    lowered = trace_planned(traced.jaxpr, 0, SingleDeviceSharding(device)).lower()
    with kept_nowhere():
        run = compiled_or_kept(lowered, xla_options(device)).compiled
    return Trial(name=name, count=count, call=lambda: jax.block_until_ready(run(*arrays)))


def _count(problem: Product | Convolution) -> int:
    return _CHAIN if problem.operations <= _SMALL else 1


def _product_trials(p: Product, rng: np.random.Generator) -> list[Trial]:
    lead = (p.batch,) if p.batch > 1 else ()
    left, right = "km" if p.turned_a else "mk", "nk" if p.turned_b else "kn"
    sizes = {"m": p.m, "k": p.k, "n": p.n}
    batch = "b" if lead else ""
    spec = f"{batch}{left},{batch}{right}->{batch}mn"
    a = _array(rng, (*lead, *(sizes[c] for c in left)), p.dtype)
    b = _array(rng, (*lead, *(sizes[c] for c in right)), p.dtype)
    axes = product_kernels.Spec.of(spec)
    return [
        _compiled(c.name, functools.partial(c.run, axes), (a, b), _count(p))
        for c in applicable(p, product_kernels.CANDIDATES)
    ]


def _last(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, 1, -1)


def _second(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, -1, 1)


def _convolution_trials(p: Convolution, rng: np.random.Generator) -> list[Trial]:
    """Data lie channels last, as they do between two convolutions."""
    sides = tuple(map(problems.padding, p.kernel, p.stride, p.dilation))
    window = Window(
        kernel=p.kernel,
        stride=p.stride,
        dilation=p.dilation,
        low=sides,
        high=sides,
        out=p.out,
    )
    x = _array(rng, (p.batch, *p.size, p.channels), p.dtype)
    g = _array(rng, (p.batch, *p.out, p.features), p.dtype)
    w = _array(rng, (p.features, p.channels // p.groups, *p.kernel), p.dtype)
    trials = []
    for c in applicable(p, convolutions.CANDIDATES[p.part]):

        def compute(a: jax.Array, b: jax.Array, c: Candidate[Convolution] = c) -> jax.Array:
            if p.part is Part.FORWARD:
                return _last(c.run(_second(a), b, window, p.groups))
            if p.part is Part.INPUT_GRADIENT:
                return _last(c.run(_second(a), b, window, p.groups, p.size))
            return c.run(_second(a), _second(b), window, p.groups, w.shape)

        arrays = {Part.FORWARD: (x, w), Part.INPUT_GRADIENT: (g, w), Part.WEIGHT_GRADIENT: (x, g)}
        trials.append(_compiled(c.name, compute, arrays[p.part], _count(p)))
    return trials


def _seconds(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _times(trials: Sequence[Trial], rounds: int, seconds: float) -> dict[str, float]:
    """Median microseconds of each, all in turns; candidates without a chance once only."""
    first: dict[str, float] = {}
    for trial in trials:
        trial.call()
        first[trial.name] = min(_seconds(trial.call, 1) for _ in range(2))
    best = min(first.values())
    found: dict[str, list[float]] = {name: [] for name in first}
    running = [t for t in trials if first[t.name] <= _HOPELESS * best]
    counts = {t.name: max(1, int(seconds / first[t.name])) for t in running}
    for turn in range(rounds):
        for trial in running if turn % 2 else running[::-1]:
            found[trial.name].append(_seconds(trial.call, counts[trial.name]))
    return {
        t.name: 1e6 * statistics.median(found[t.name] or [first[t.name]]) / t.count for t in trials
    }


def _distinct(wanted: Iterable[Problem]) -> list[Problem]:
    """One problem for each category and sizes."""
    return list({(p.category, p.sizes): p for p in wanted}.values())


def of_category(text: str) -> list[Problem]:
    """Problems of :mod:`bench.kernels.problems` whose category holds a text.

    Args:
        text: A part of :attr:`~emulator.kernels.problems.Problem.category`.

    Returns:
        The problems.

    Example:
        >>> sorted({p.category for p in of_category("2d weight gradient float32 3 group")})
        ['convolution 2d weight gradient float32 3 grouped']
    """
    every: list[Problem] = [*problems.convolutions(), *problems.products()]
    return [problem for problem in every if text in problem.category]


def merged(old: Rule, new: Rule) -> Rule:
    """A rule with the measurements of another in the place of its own of the same sizes.

    Args:
        old: The rule.
        new: What was measured since.

    Returns:
        The rule of both, by the name of the newer.
    """
    points = dict(old.points)
    for category, measured in new.points.items():
        again = {point.sizes for point in measured}
        kept = [point for point in points.get(category, ()) if point.sizes not in again]
        points[category] = (*kept, *measured)
    return Rule(name=new.name, points=MappingProxyType(points))


def tune(
    *, rounds: int, seconds: float, wanted: Iterable[Problem] | None, tell: Callable[[str], None]
) -> Rule:
    """Time all candidates; wants a quiet machine.

    Args:
        rounds: Turns of each candidate.
        seconds: Length of a turn.
        wanted: Problems; None for those of :mod:`bench.kernels.problems`.
        tell: Called with a line for every problem.

    Returns:
        The rule of this processor.
    """
    rng = np.random.default_rng(0)
    points: dict[str, list[Measured]] = {}
    if wanted is None:
        wanted = of_category("")
    for problem in _distinct(wanted):
        if isinstance(problem, Product):
            trials = _product_trials(problem, rng)
        elif isinstance(problem, Convolution):
            trials = _convolution_trials(problem, rng)
        else:
            raise TypeError(f"no candidates for {problem}")
        times = _times(trials, rounds, seconds)
        point = Measured(sizes=problem.sizes, times=MappingProxyType(times))
        points.setdefault(problem.category, []).append(point)
        rates = ", ".join(f"{n} {problem.operations / t / 1e3:.0f}" for n, t in times.items())
        tell(f"{problem.category} {problem.sizes}: {rates} GFLOP/s")
    return Rule(name=processor().key, points={k: tuple(v) for k, v in points.items()})


def about() -> dict[str, str]:
    """What a rule was measured on."""
    return {"processor": str(processor()), "jaxlib": version("jaxlib")}
