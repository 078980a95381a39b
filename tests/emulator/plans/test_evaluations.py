"""Chains that a fusion would compute many times over, and those that it would not."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax
from torch import nn

from emulator.device import Device
from emulator.kernels.unfused import compile_apart, in_memory
from emulator.plans.evaluations import MOST_EVALUATIONS, evaluations
from emulator.plans.step_choice import all_steps
from samba.compiler.build import build_program
from samba.compiler.options import CompileOptions
from tests.tracing import trace

Step = Callable[[jax.Array], jax.Array]


def chained(step: Step, length: int) -> Step:
    def run(x: jax.Array) -> jax.Array:
        for _ in range(length):
            x = step(x)
        return x

    return run


def counted(function: Step) -> int:
    return evaluations(jax.make_jaxpr(function)(jnp.ones((8, 8))))


@pytest.mark.parametrize(
    "step",
    [
        lambda x: jnp.roll(x, 1) + x,
        lambda x: x.T + x,
        lambda x: x[::-1] * 0.5 + jnp.cos(x),
        lambda x: jnp.pad(x, 1)[2:, 1:-1] - x,
        lambda x: x - x.max(1, keepdims=True),
        jax.jit(lambda x: x.T + x),
        jax.checkpoint(lambda x: x.T + x),
        lambda x: lax.fori_loop(0, 1, lambda _, h: h.T + h, x),
        lambda x: x.at[jnp.array([1])].set(x[3:4] * 2.0) + jnp.roll(x, 1),
        lambda x: x[:, :1] @ x[:1] + x.T,
        lambda x: lax.reduce(jnp.stack([x.T, x], 2), 0.0, lambda a, b: a + b * b, (2,)),
        lambda x: jnp.concatenate([*jnp.split(x, 8, 1)[1:], x[:, :1], x[:, :1]], 1)[:, :8] + x,
    ],
)
def test_chains_that_move_elements_grow(step: Step) -> None:
    assert counted(chained(step, 1)) <= MOST_EVALUATIONS
    assert counted(chained(step, 20)) > MOST_EVALUATIONS
    assert counted(lambda x: chained(step, 20)(x).sum()) > MOST_EVALUATIONS


@pytest.mark.parametrize(
    "step",
    [
        lambda x: jnp.cos(x) * x + x,
        lambda x: x[::-1] * 2.0,
        lambda x: x @ x + x.T,
        lambda x: in_memory(jnp.roll(x, 1) + x),
        lambda x: jnp.cumsum(x, 0) + jnp.roll(x, 1),
        lambda x: x.at[jnp.array([1, 2])].set(x[3:5] * 2.0) + jnp.roll(x, 1),
        lambda x: x * 0.5 + x.sum(),
    ],
)
def test_chains_that_are_cut_or_move_nothing_do_not(step: Step) -> None:
    assert counted(chained(step, 20)) <= 2


def test_loops_and_calls_are_looked_into() -> None:
    many = chained(lambda x: x.T + x, 20)
    in_loop = counted(lambda x: jax.lax.fori_loop(0, 3, lambda _, h: many(h), x))
    assert in_loop > MOST_EVALUATIONS
    assert counted(lambda x: compile_apart(many, x)) > MOST_EVALUATIONS


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
    # A limit that no load can reach. It took 1.5 seconds; with the option each step more takes
    # twice as long, and 17 steps take 4 seconds.
    assert time.process_time() - before < 120


def test_many_readers_are_counted_in_time() -> None:
    def read(x: jax.Array) -> jax.Array:
        y = jnp.cos(x)
        return jnp.stack([y @ x * i for i in range(1500)])

    traced = jax.make_jaxpr(read)(jnp.ones((8, 8)))
    before = time.process_time()
    assert evaluations(traced) == 1
    assert time.process_time() - before < 5, "it took 0.05 seconds"
