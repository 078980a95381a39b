"""Drawn convolutions and products by native kernels, against torch and against XLA's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings, strategies as st

from emulator.kernels import conv_by_native, conv_by_xla, convolutions, products
from emulator.kernels.problems import Convolution, Part, Product
from emulator.kernels.products import Spec
from emulator.kernels.windows import Window
from emulator.native import library
from emulator.native.library import native_library, without_native
from tests.emulator.native.test_drawn_recurrences import threads_of

pytestmark = pytest.mark.skipif(native_library() is None, reason="there are no native kernels here")

_CHANNELS = (1, 2, 3, 5, 8, 12, 16, 17, 31, 32, 48)
_SIZES = {1: 40, 2: 14, 3: 7}
"""Most places along an axis, by the number of axes."""
_BAD = (math.nan, math.inf, -math.inf)


@pytest.fixture(autouse=True)
def small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems are divided among threads, and none is left to XLA for its size."""
    monkeypatch.setattr(library, "_LEAST_OF_A_SHARE", 1)
    monkeypatch.setattr(products, "_LEAST_FOR_NATIVE", {"float32": 0, "bfloat16": 0})
    monkeypatch.setattr(convolutions, "_LEAST_FOR_NATIVE", 0)
    monkeypatch.setattr(conv_by_native, "_LARGE_DATA", 0)


def _bound(terms: int) -> float:
    """Of a float32 sum of so many products of normal numbers, added in any order."""
    return 4e-7 * (4 + terms)


def _random(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(values).to(dtype)


def _jax(t: torch.Tensor) -> jax.Array:
    return jnp.array(t.detach().float().numpy(), str(t.dtype).partition(".")[2])  # its own memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    groups: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    window: Window
    narrow: bool
    bad: float | None
    threads: int = 2


@st.composite
def _convolutions(draw: st.DrawFn) -> _Case:
    """Any groups, strides and dilations, uneven padding; more and fewer images than threads."""
    axes = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["dense", "dense", "grouped", "depthwise"]))
    channels, features = (draw(st.sampled_from(_CHANNELS)) for _ in range(2))
    groups = {"dense": 1, "grouped": draw(st.sampled_from([2, 3, 8])), "depthwise": channels}[kind]
    inner = 1 if kind == "depthwise" else channels
    outer = draw(st.integers(1, 2)) if kind == "depthwise" else features

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    size = each(1, _SIZES[axes])
    # oneDNN has kernels of their own for one tap along every axis.
    kernel = (1,) * axes if draw(st.integers(0, 3)) == 0 else each(1, 5 if axes < 3 else 3)
    stride, dilation = each(1, 3), each(1, 3)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    low, high = (tuple(draw(st.integers(0, r)) for r in reach) for _ in range(2))
    sides = zip(size, low, high, reach, stride, strict=True)
    out = tuple(max((n + a + b - r - 1) // s + 1, 0) for n, a, b, r, s in sides)
    return _Case(
        groups=groups,
        x=(draw(st.integers(1, 5)), inner * groups, *size),
        w=(outer * groups, inner, *kernel),
        window=Window(kernel=kernel, stride=stride, dilation=dilation, low=low, high=high, out=out),
        narrow=draw(st.booleans()),
        bad=draw(st.sampled_from([None, None, None, *_BAD])),
        threads=draw(st.integers(1, 9)),
    )


def _value(compute: Callable[..., Any], *arrays: jax.Array) -> np.ndarray:
    return np.asarray(jax.jit(compute)(*arrays))


def _check_convolution(case: _Case) -> Counter[Part]:
    """Compare a convolution and its gradients with torch's and with XLA's; what was computed."""
    with threads_of(case.threads):
        return _computed_parts(case)


def _computed_parts(case: _Case) -> Counter[Part]:
    done: Counter[Part] = Counter()
    if not min(case.window.out):
        return done
    n, window, groups = case.window.ndim, case.window, case.groups
    dtype = torch.bfloat16 if case.narrow else torch.float32
    x, w = _random(0, case.x, dtype), _random(1, case.w, dtype)
    if case.bad is not None:
        x.view(-1)[x.numel() // 2] = case.bad
    wide, kernels = x.float().requires_grad_(), w.float().requires_grad_()
    sides = [side for pair in zip(reversed(window.low), reversed(window.high), strict=True)
             for side in pair]  # fmt: skip
    padded = torch.nn.functional.pad(wide, sides)
    run = (torch.conv1d, torch.conv2d, torch.conv3d)[n - 1]
    y = run(padded, kernels, None, window.stride, 0, window.dilation, groups)
    g = _random(2, tuple(y.shape), dtype)
    dx, dw = torch.autograd.grad(y, (wide, kernels), g.float())
    jx, jw, jg = map(_jax, (x, w, g))
    taps = math.prod(window.kernel)
    parts: dict[Part, tuple[Any, ...]] = {
        Part.FORWARD: (y, (jx, jw), (window, groups), taps * case.w[1]),
        Part.INPUT_GRADIENT: (
            dx, (jg, jw), (window, groups, case.x[2:]), taps * case.w[0] // groups,
        ),
        Part.WEIGHT_GRADIENT: (
            dw, (jx, jg), (window, groups, case.w), case.x[0] * math.prod(window.out),
        ),
    }  # fmt: skip
    ours = (conv_by_native.convolve, conv_by_native.input_gradient, conv_by_native.weight_gradient)
    theirs = (convolutions.convolve, convolutions.input_gradient, convolutions.weight_gradient)
    for (part, (wanted, arrays, rest, terms)), native, plain in zip(
        parts.items(), ours, theirs, strict=True
    ):
        problem = Convolution.of(part, arrays[0].dtype, case.x, case.w, window, groups)
        if not conv_by_native.has_kernel(problem):
            continue
        done[part] += 1
        got = _value(lambda a, b, run=native, rest=rest: run(a, b, *rest), *arrays)
        with without_native():
            other = _value(lambda a, b, run=plain, rest=rest: run(a, b, *rest), *arrays)
        for name, values in (("torch", wanted.detach()), ("xla", other)):
            np.testing.assert_allclose(
                got, values, rtol=1e-6, atol=_bound(terms), err_msg=f"{part} of {case}, {name}"
            )
    return done


@given(case=_convolutions())
@settings(max_examples=8, deadline=None)
def test_convolutions(case: _Case) -> None:
    _check_convolution(case)


@pytest.mark.parametrize("channels", [2, 12, 16])
def test_a_gradient_of_one_tap_with_strides(channels: int) -> None:
    """oneDNN 3.2 gathers such data by whole vectors, and overwrites what lies behind the last."""
    window = Window(
        kernel=(1, 1), stride=(3, 2), dilation=(1, 1), low=(0, 0), high=(0, 0), out=(4, 6)
    )
    case = _Case(
        groups=1, x=(2, channels, 12, 12), w=(2, channels, 1, 1), window=window, narrow=False,
        bad=None,
    )  # fmt: skip
    _check_convolution(case)


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("turn", range(10))
def test_two_thousand_convolutions(turn: int) -> None:
    """Forward and both gradients of each that oneDNN has generated code for: most of them."""
    done: Counter[Part] = Counter()

    @seed(turn)
    @given(case=_convolutions())
    @settings(max_examples=200, deadline=None)
    def run(case: _Case) -> None:
        done.update(_check_convolution(case))

    run()
    assert min(done[part] for part in Part) > 100, done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrices:
    batch: int
    m: int
    k: int
    n: int
    turned_a: bool
    turned_b: bool
    biased: bool
    narrow: bool
    bad: float | None
    threads: int = 2


@st.composite
def _products(draw: st.DrawFn) -> _Matrices:
    length = st.integers(1, 40)
    return _Matrices(
        batch=draw(st.sampled_from([1, 1, 1, 2, 3, 5])),
        m=draw(length),
        k=draw(length),
        n=draw(length),
        turned_a=draw(st.booleans()),
        turned_b=draw(st.booleans()),
        biased=draw(st.booleans()),
        narrow=draw(st.booleans()),
        bad=draw(st.sampled_from([None, None, None, *_BAD])),
        threads=draw(st.integers(1, 9)),
    )


def _check_product(case: _Matrices) -> bool:
    """Compare a product with torch's and with XLA's; whether it was computed."""
    with threads_of(case.threads):
        return _is_computed(case)


def _is_computed(case: _Matrices) -> bool:
    lead, batch = ((case.batch,), "b") if case.batch > 1 else ((), "")
    left, right = "km" if case.turned_a else "mk", "nk" if case.turned_b else "kn"
    sizes = {"m": case.m, "k": case.k, "n": case.n}
    dtype = torch.bfloat16 if case.narrow else torch.float32
    a = _random(0, (*lead, *(sizes[c] for c in left)), dtype)
    b = _random(1, (*lead, *(sizes[c] for c in right)), dtype)
    bias = _random(2, (case.n,), dtype) if case.biased else None
    if case.bad is not None:
        a.view(-1)[a.numel() // 2] = case.bad
    text = f"{batch}{left},{batch}{right}->{batch}mn"
    wanted = torch.einsum(text, a.float(), b.float())
    wanted = wanted if bias is None else wanted + bias.float()
    problem = Product(
        dtype=str(_jax(a).dtype), turned_a=case.turned_a, turned_b=case.turned_b,
        batch=case.batch, m=case.m, k=case.k, n=case.n,
    )  # fmt: skip
    native, xla = products.CANDIDATES
    if not native.applies(problem):
        return False
    added = None if bias is None else _jax(bias)
    for rounded in (None, jnp.bfloat16) if case.narrow else (None,):
        got, other = (
            jax.jit(lambda a, b, run=c.run, to=rounded: run(Spec.of(text), a, b, to, added))(
                _jax(a), _jax(b)
            )
            for c in (native, xla)
        )
        assert got.dtype == other.dtype == (rounded or jnp.float32)
        step = 2**-8 if rounded else 1e-6
        for name, values in (("torch", wanted), ("xla", other)):
            np.testing.assert_allclose(
                np.asarray(got, np.float32), np.asarray(values, np.float32),
                rtol=2 * step, atol=_bound(case.k) + (step if rounded else 0),
                err_msg=f"{case}, {name}",
            )  # fmt: skip
    return True


@given(case=_products())
@settings(max_examples=12, deadline=None)
def test_products(case: _Matrices) -> None:
    _check_product(case)


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("count", [1, 2])
def test_infinity_as_the_last_of_an_odd_number(k: int, count: int) -> None:
    """oneDNN 3.2 gave NaN where bfloat16 is multiplied in pairs and columns are divided."""
    a = jnp.ones((2, k), jnp.bfloat16).at[1, -1].set(math.inf)
    with threads_of(count):
        found = products.product("mk,kn->mn", a, jnp.ones((k, 17), jnp.bfloat16))
    assert bool(jnp.isinf(found[1]).all() & (found[0] == k).all())


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("turn", range(5))
def test_five_hundred_products(turn: int) -> None:
    done = Counter[bool]()

    @seed(turn)
    @given(case=_products())
    @settings(max_examples=100, deadline=None)
    def run(case: _Matrices) -> None:
        done[_check_product(case)] += 1

    run()
    assert done[True] > 30, done


def test_the_bounds_bite() -> None:
    """A tap that is left out, and a product of rounded factors, are far outside of them."""
    x, w = _random(0, (2, 8, 9), torch.float32), _random(1, (8, 8, 3), torch.float32)
    window = Window(kernel=(3,), stride=(1,), dilation=(1,), low=(0,), high=(0,), out=(7,))
    got = _value(lambda a, b: conv_by_native.convolve(a, b, window, 1), _jax(x), _jax(w))
    w[0, 0, 0] = 0
    off = np.abs(got - _value(lambda a, b: conv_by_xla.convolve(a, b, window, 1), _jax(x), _jax(w)))
    assert off.max() > 1000 * _bound(24)
    rounded = x.bfloat16().float()
    assert float((torch.conv1d(x, w) - torch.conv1d(rounded, w)).abs().max()) > 100 * _bound(24)
