"""Kernels against torch."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.kernels import convolutions, products
from emulator.kernels.conv_by_xla import weight_gradient_by_tap_sums
from emulator.kernels.convolutions import CANDIDATES
from emulator.kernels.problems import Convolution, Part, Product, applicable
from emulator.kernels.products import CANDIDATES as PRODUCTS, Spec
from emulator.kernels.windows import Window
from emulator.native import library

_SIZE = st.integers(1, 9)


@pytest.fixture(autouse=True)
def small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels apply to small problems, too, and divide them."""
    monkeypatch.setattr(convolutions, "_LEAST_FOR_NATIVE", 0)
    monkeypatch.setattr(products, "_LEAST_FOR_NATIVE", {"float32": 0, "bfloat16": 0})
    monkeypatch.setattr(library, "_LEAST_OF_A_SHARE", 1)


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _bound(terms: int) -> float:
    """Of a float32 sum of so many products of normal numbers, added in any order."""
    return 4e-7 * (4 + terms)


@given(
    m=_SIZE, k=_SIZE, n=_SIZE, batch=st.integers(1, 3), form=st.integers(0, 3), nan=st.booleans()
)
@settings(max_examples=12, deadline=None)
def test_products_agree(m: int, k: int, n: int, batch: int, form: int, nan: bool) -> None:
    left, right = ("mk", "km")[form & 1], ("kn", "nk")[form >> 1]
    sizes = {"b": batch, "m": m, "k": k, "n": n}
    a = _random(0, batch, *(sizes[c] for c in left))
    b = _random(1, batch, *(sizes[c] for c in right))
    if nan:
        a.reshape(-1)[0], b.reshape(-1)[-1] = np.nan, np.inf
    spec = f"b{left},b{right}->bmn"
    wanted = torch.einsum(spec, torch.from_numpy(a), torch.from_numpy(b)).numpy()
    problem = Product(
        dtype="float32",
        turned_a=bool(form & 1),
        turned_b=bool(form >> 1),
        batch=batch,
        m=m,
        k=k,
        n=n,
    )
    for candidate in applicable(problem, PRODUCTS):
        run = jax.jit(lambda a, b, run=candidate.run: run(Spec.of(spec), a, b))
        np.testing.assert_allclose(
            run(a, b), wanted, rtol=1e-6, atol=_bound(k), err_msg=candidate.name
        )


@pytest.mark.parametrize("shape", [(1, 3, 2), (5, 7, 4), (64, 33, 17)])
@pytest.mark.parametrize("special", [False, True])
def test_narrow_products_with_bias_agree(shape: tuple[int, int, int], special: bool) -> None:
    """Against torch in float64 on the same operands: one rounding, NaN and infinity in place."""
    m, k, n = shape
    a, b, bias = (
        torch.from_numpy(x).bfloat16() for x in (_random(0, m, k), _random(1, n, k), _random(2, n))
    )
    if special:
        a[0, 0], b[-1, -1], bias[n // 2] = math.nan, math.inf, -math.inf
    wanted = torch.nn.functional.linear(a.double(), b.double(), bias.double()).float()
    problem = Product(
        dtype="bfloat16", turned_a=False, turned_b=True, batch=1, m=m, k=k, n=n
    )  # fmt: skip
    arrays = [jnp.asarray(t.float().numpy(), jnp.bfloat16) for t in (a, b, bias)]
    for candidate in applicable(problem, PRODUCTS):
        run = jax.jit(
            lambda a, b, bias, run=candidate.run: run(
                Spec.of("ni,oi->no"), a, b, jnp.bfloat16, bias
            )
        )
        got = run(*arrays)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            np.asarray(got, np.float32), wanted, rtol=2**-8, atol=2**-8 * _bound(k),
            err_msg=candidate.name,
        )  # fmt: skip


def test_a_wrong_product_is_noticed() -> None:
    """The bound bites: one rounding to bfloat16 is far outside of it."""
    a, b = _random(0, 8, 8), _random(1, 8, 8)
    rounded = np.asarray(jnp.asarray(a, jnp.bfloat16), np.float32) @ b
    assert np.max(np.abs(rounded - a @ b)) > 10 * _bound(8)


@st.composite
def _convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    n = draw(st.integers(1, 2))
    groups, c, o = draw(st.sampled_from([(1, 2, 3), (1, 1, 4), (2, 2, 1), (3, 1, 1), (3, 1, 2)]))
    each = [
        (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2)),
         draw(st.integers(0, 2)), draw(st.integers(5, 8)))
        for _ in range(n)
    ]  # fmt: skip
    return n, groups, c, o, *zip(*each, strict=True)


@given(
    images=st.integers(1, 35), groups=st.integers(2, 5), each=st.integers(1, 2),
    kernel=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 2),
    low=st.integers(-1, 3), high=st.integers(-1, 2), bad=st.sampled_from([1.0, math.nan, math.inf]),
    narrow=st.booleans(),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_depthwise_kernel_gradients(
    images: int, groups: int, each: int, kernel: int, stride: int, dilation: int, low: int,
    high: int, bad: float, narrow: bool,
) -> None:  # fmt: skip
    """Of any number of images, with uneven and negative padding: sums by tap against torch."""
    out = (7 + low + high - dilation * (kernel - 1) - 1) // stride + 1
    if out < 1:
        return
    dtype = torch.bfloat16 if narrow else torch.float32
    x = torch.from_numpy(_random(0, images, groups, 7)).to(dtype)
    x[0, 0, 3] = bad
    w = torch.zeros(groups * each, 1, kernel, requires_grad=True)
    y = torch.conv1d(
        torch.nn.functional.pad(x.float(), (low, high)), w, None, stride, 0, dilation, groups
    )
    g = torch.from_numpy(_random(1, *y.shape)).to(dtype)
    (wanted,) = torch.autograd.grad(y, w, g.float())
    window = Window(
        kernel=(kernel,), stride=(stride,), dilation=(dilation,), low=(low,), high=(high,),
        out=(out,),
    )  # fmt: skip
    jx, jg = (jnp.asarray(t.float().numpy(), str(dtype).split(".")[1]) for t in (x, g))
    got = weight_gradient_by_tap_sums(jx, jg, window, groups, tuple(w.shape))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=_bound(images * out))


@given(drawn=_convolutions(), nan=st.booleans())
@settings(max_examples=8, deadline=None)
def test_convolutions_agree(drawn: tuple[Any, ...], nan: bool) -> None:
    n, groups, c, o, kernel, stride, dilation, padding, size = drawn
    x = torch.from_numpy(_random(0, 2, groups * c, *size)).requires_grad_()
    w = torch.from_numpy(_random(1, groups * o, c, *kernel)).requires_grad_()
    if nan:
        x.data.view(-1)[0] = math.nan
    torch_conv = (torch.conv1d, torch.conv2d)[n - 1]
    y = torch_conv(x, w, None, stride, padding, dilation, groups)
    g = torch.from_numpy(_random(2, *y.shape))
    dx, dw = torch.autograd.grad(y, (x, w), g)
    window = Window(
        kernel=kernel, stride=stride, dilation=dilation, low=padding, high=padding,
        out=tuple(y.shape[2:]),
    )  # fmt: skip
    jx, jw, jg = (jnp.asarray(t.detach().numpy()) for t in (x, w, g))
    cases = {
        Part.FORWARD: (y, (jx, jw), (window, groups), c * math.prod(kernel)),
        Part.INPUT_GRADIENT: (dx, (jg, jw), (window, groups, size), o * math.prod(kernel)),
        Part.WEIGHT_GRADIENT: (dw, (jx, jg), (window, groups, tuple(w.shape)), 2 * math.prod(size)),
    }
    for part, (wanted, arrays, rest, terms) in cases.items():
        problem = Convolution.of(part, "float32", tuple(x.shape), tuple(w.shape), window, groups)
        for candidate in applicable(problem, CANDIDATES[part]):
            run = jax.jit(lambda a, b, run=candidate.run, rest=rest: run(a, b, *rest))
            np.testing.assert_allclose(
                run(*arrays), wanted.detach(), rtol=1e-6, atol=_bound(terms),
                err_msg=f"{part} {candidate.name}",
            )  # fmt: skip
