"""Which values are made once, in memory, and which each kernel makes for itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax
from torch import nn

from emulator.device import Device
from emulator.kernels.unfused import compile_apart
from emulator.plans.fusion.planner import MOST_PLACES, made_in_memory
from emulator.plans.fusion.rewriting import planned
from emulator.plans.step_choice import all_steps
from emulator.plans.traced.flat import flattened
from emulator.plans.traced.forms import Forms
from emulator.plans.traced.sizes import functions_in
from samba.compiler.build import build_program
from samba.compiler.options import CompileOptions
from tests.tracing import trace

Step = Callable[[jax.Array], jax.Array]
X = jnp.ones((8, 8))


def once(function: Callable[..., Any], *arrays: jax.Array) -> list[str]:
    """The operations whose results are made once, as they stand in the plan."""
    flat = flattened(jax.make_jaxpr(function)(*(arrays or (X,))).jaxpr, Forms(), whole=True)
    chosen = made_in_memory(flat)
    return [eqn.primitive.name for eqn in flat.eqns if not chosen.isdisjoint(eqn.outvars)]


def two_kernels(make: Step) -> Callable[[jax.Array], Any]:
    """A value that two reductions want, each of which is a kernel."""

    def read(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = make(x)
        return h.sum(0), (h * 3.0).max(1)

    return read


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x * 2.0,
        lambda x: (x - 1.0) * (x + 2.0),
        lambda x: x + x.sum(1, keepdims=True),
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
        lambda x: jnp.where(x > 0.0, x, 0.0),
        lambda x: x[::-1] * 2.0,
    ],
    ids=["product", "few", "broadcast", "rounding", "relu", "reversed"],
)
def test_what_is_made_as_fast_as_it_is_read_is_made_by_each_kernel(make: Step) -> None:
    assert once(two_kernels(make)) == []


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (jnp.cos, "cos"),
        (lambda x: jnp.exp(x) + 1.0, "add"),
        (lambda x: jnp.sqrt(x) / (x + 3.0) / (x + 4.0), "div"),
        (lambda x: jnp.cos(x).T, "cos"),
        (lambda x: x + sum(jnp.roll(x, n) for n in range(1, 6)), "add"),
    ],
    ids=["cosine", "exponential", "quotients", "transposed", "much memory"],
)
def test_what_takes_longer_is_made_once(make: Step, last: str) -> None:
    assert once(two_kernels(make)) == [last]


def test_what_lies_in_memory_is_read_from_there() -> None:
    def read(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = x + 1.0
        return h @ x, h.sum(0)

    assert once(read) == ["add"]


def test_three_kernels_share_what_two_would_make() -> None:
    def read(x: jax.Array) -> Any:
        h = x * 2.0 - 1.0
        return [(h * n).sum(0) for n in range(3)]

    assert once(read) == ["sub"]
    assert once(lambda x: [(x * 2.0 - n).sum(0) for n in range(3)]) == []


def test_readers_in_one_kernel_are_one() -> None:
    """Threefry's rounds each read both halves of the round before."""

    def rounds(x: jax.Array) -> jax.Array:
        a, b = x.view(jnp.uint32), x.view(jnp.uint32) + 7
        for shift in (13, 15, 26, 6, 17, 29, 16, 24):
            a = a + b
            b = a ^ (b << shift | b >> (32 - shift))
        return a.view(jnp.float32)

    assert once(rounds) == []
    assert len(once(two_kernels(rounds))) == 1


def test_a_value_that_is_transposed_for_two_readers_is_made_once() -> None:
    def read(x: jax.Array) -> Any:
        h = jnp.where(x > 0.0, x, 0.0) * 2.0
        return h.T.sum(1), h.T * 3.0

    assert once(read) == ["mul"]


def chained(step: Step, length: int) -> Step:
    def run(x: jax.Array) -> jax.Array:
        for _ in range(length):
            x = step(x)
        return x

    return run


@pytest.mark.parametrize(
    "step",
    [
        lambda x: jnp.roll(x, 1) + x,
        lambda x: x.T + x,
        lambda x: x[::-1] * 0.5 + jnp.cos(x),
        lambda x: jnp.pad(x, 1)[2:, 1:-1] - x,
        jax.jit(lambda x: x.T + x),
        lambda x: lax.reduce(jnp.stack([x.T, x], 2), 0.0, lambda a, b: a + b * b, (2,)) + x,
        lambda x: jnp.concatenate([*jnp.split(x, 8, 1)[1:], x[:, :1], x[:, :1]], 1)[:, :8] + x,
    ],
)
def test_a_kernel_does_not_repeat_itself(step: Step) -> None:
    """Each step wants two places of the one before: two to the power of their number in all."""
    uncut = MOST_PLACES.bit_length()
    assert 40 // (uncut + 1) <= len(once(chained(step, 40))) < 40


@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda x: compile_apart(f, x),
        lambda f: lambda x: lax.fori_loop(0, 3, lambda _, h: f(h), x),
        lambda f: lambda x: lax.while_loop(lambda h: h[0, 0] < 0.0, f, x),
        lambda f: lambda x: lax.cond(x[0, 0] > 0.0, f, lambda h: h, x),
        lambda f: lambda x: lax.scan(lambda h, _: (f(h), None), x, None, length=2)[0],
    ],
    ids=["apart", "loop", "while", "branch", "scan"],
)
def test_functions_within_are_planned(around: Callable[[Step], Step]) -> None:
    def step(x: jax.Array) -> jax.Array:
        h = jnp.cos(x)
        return h.sum(0) + h.max(1) + x

    def calls(jaxpr: Any) -> int:
        own = sum(eqn.params.get("name") == "_same" for eqn in jaxpr.eqns)
        return own + sum(calls(f) for eqn in jaxpr.eqns for f in functions_in(eqn.params.values()))

    traced = jax.make_jaxpr(around(step))(X)
    assert calls(traced.jaxpr) == 0
    assert calls(planned(traced).jaxpr) == 1


class Rolling(nn.Module):
    """Steps of a stencil, each of which wants two places of the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = torch.roll(x, 1, 0) + 0.5 * x
        return x.mean()


def test_a_stencil_is_compiled_in_time() -> None:
    options = CompileOptions(name="rolling", inference=True)
    device = Device(build_program(trace(Rolling(), (torch.ones(64, 4),)), [], options))
    before = time.process_time()
    device.plan(all_steps(device.program))
    # A limit that no load can reach. It takes 1.5 seconds; fused, each step takes twice as long as
    # the one before, and 17 steps take 4 seconds.
    assert time.process_time() - before < 120


def test_many_readers_are_planned_in_time() -> None:
    def read(x: jax.Array) -> jax.Array:
        y = jnp.cos(x)
        return jnp.stack([(y * i).sum() for i in range(3000)])

    traced = jax.make_jaxpr(read)(X)
    before = time.process_time()
    planned(traced)
    assert time.process_time() - before < 20, "it took 0.4 seconds"
