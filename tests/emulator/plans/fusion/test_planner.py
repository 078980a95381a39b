"""Which values are made once, in memory, and which each kernel makes for itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun, primitives

from emulator.kernels.unfused import compile_apart
from emulator.plans import fused_operations
from emulator.plans.fusion import made_in_memory, planned
from emulator.plans.traced import Forms, flattened, functions_in

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


def test_a_concatenation_for_two_kernels_is_made_once() -> None:
    """XLA would make it once, too, and then what it is made of in three kernels."""

    def read(x: jax.Array) -> Any:
        h = x * 2.0 - 1.0
        rolled = jnp.roll(h, 1, 0) * h
        return rolled.sum(0), (rolled * 3.0).max(1)

    assert once(read) == ["mul"]


@pytest.mark.parametrize("join", [jnp.stack, jnp.concatenate])
def test_what_many_joined_arrays_are_made_of_is_made_once(join: Callable[..., Any]) -> None:
    def read(x: jax.Array) -> Any:
        h = jnp.sin(x)
        return join([h + float(n) for n in range(9)])

    assert once(read) == ["sin"]


@pytest.mark.parametrize("split", [lambda x: jnp.split(x, 2), jnp.unstack])
def test_parts_for_kernels_of_their_own_make_nothing_twice(split: Callable[..., Any]) -> None:
    def read(x: jax.Array) -> Any:
        first, second, *_ = split(jnp.sin(x))
        return first.sum(0), second.max(0)

    def twice(x: jax.Array) -> Any:
        first, *_ = split(jnp.sin(x))
        return first.sum(0), first.max(0), (first * 2.0).sum()

    assert once(read) == []
    assert once(twice) == ["sin"]


def test_native_calls_are_kernels() -> None:
    result = jax.ShapeDtypeStruct((8, 8), np.float32)
    (call,) = jax.make_jaxpr(jax.ffi.ffi_call("native", result))(X, X).jaxpr.eqns
    assert fused_operations.fusing_of(call) is fused_operations.Fusing.ALONE


def test_a_number_is_made_before_it_is_spread() -> None:
    assert once(two_kernels(lambda x: x * jnp.exp(x[0, 0]))) == []


def test_the_order_of_operands_decides_nothing() -> None:
    def read(x: jax.Array, turn: bool) -> Any:
        padded = lax.pad(x[:1], 0.0, ((0, 7, 0), (0, 0, 0)))
        h = padded + x if turn else x + padded
        return h @ x, h.sum(0)

    assert once(lambda x: read(x, True)) == once(lambda x: read(x, False)) == ["add"]


def test_products_of_single_elements_and_small_powers_are_light() -> None:
    assert once(two_kernels(lambda x: x[:, :1] @ x[:1])) == []
    assert once(two_kernels(lambda x: x**2)) == []
    assert once(lambda x: [(x**15 * n).sum(0) for n in range(3)]) == ["integer_pow"]


def test_names_are_those_of_jax() -> None:
    """An operation of another name would be taken for a dear one."""
    known = {getattr(primitives, n).name for n in dir(primitives) if n.endswith("_p")}
    # Those that jax.extend does not list.
    x = jnp.ones((2, 2))
    others = jax.make_jaxpr(
        lambda x: (
            jnp.stack(jnp.unstack(x)),
            jnp.split(x, 2),
            lax.tile(x, (2, 1)),
            lax.optimization_barrier(x),
        )
    )
    known |= {eqn.primitive.name for eqn in others(x).jaxpr.eqns} | {"ffi_call"}
    for name, value in vars(fused_operations).items():
        if isinstance(value, frozenset):
            assert value <= known, name


@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda x: compile_apart(f, x),
        lambda f: lambda x: lax.fori_loop(0, 3, lambda _, h: f(h), x),
        lambda f: lambda x: lax.while_loop(lambda h: h[0, 0] < 3.0, f, x),
        lambda f: lambda x: lax.while_loop(lambda h: f(h)[0, 0] < 0.0, jnp.cos, x),
        lambda f: lambda x: lax.cond(x[0, 0] > 0.0, f, lambda h: h, x),
        lambda f: lambda x: lax.scan(lambda h, _: (f(h), None), x, None, length=2)[0],
    ],
    ids=["apart", "loop", "while", "condition", "branch", "scan"],
)
def test_functions_within_are_planned(around: Callable[[Step], Step]) -> None:
    def step(x: jax.Array) -> jax.Array:
        h = jnp.cos(x)
        return h.sum(0) + h.max(1) + x

    def calls(jaxpr: Any) -> int:
        own = sum(eqn.params.get("name") == "_same" for eqn in jaxpr.eqns)
        return own + sum(calls(f) for eqn in jaxpr.eqns for f in functions_in(eqn.params.values()))

    traced = jax.make_jaxpr(around(step))(X)
    changed = planned(traced)
    assert calls(traced.jaxpr) == 0
    assert calls(changed.jaxpr) == 1
    for wanted, found in zip(jaxpr_as_fun(traced)(X), jaxpr_as_fun(changed)(X), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)  # sums of 8 numbers, fused otherwise


def test_results_may_be_arguments_literals_or_given_twice() -> None:
    table = jnp.arange(8.0)

    def results(x: jax.Array, y: jax.Array) -> Any:
        h = jnp.cos(x)
        return h, h, y, 2.0, (h + table).sum(0), (h * y[0]).max(1), jnp.zeros((0, 3)), x.astype(int)

    traced = jax.make_jaxpr(results)(X, jnp.ones(3))
    wanted = results(X, jnp.ones(3))
    for one, other in zip(wanted, jaxpr_as_fun(planned(traced))(X, jnp.ones(3)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)  # sums of 8 numbers, fused otherwise


def test_calls_that_say_what_lies_where_stay() -> None:
    where = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    placed = jax.jit(lambda x: x * 2.0, out_shardings=where)
    names = [
        e.primitive.name for e in planned(jax.make_jaxpr(lambda x: placed(x) + 1.0)(X)).jaxpr.eqns
    ]
    assert names == ["jit", "add"]


def test_many_readers_are_planned_in_time() -> None:
    def read(x: jax.Array) -> jax.Array:
        y = jnp.cos(x)
        return jnp.stack([(y * i).sum() for i in range(3000)])

    traced = jax.make_jaxpr(read)(X)
    before = time.process_time()
    planned(traced)
    assert time.process_time() - before < 20, "it took 0.4 seconds"
