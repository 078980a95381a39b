"""Convolutions down to sizes 0 and 1, by every kernel, forward and gradients, against torch.

``tests/emulator/native/test_drawn.py`` has larger ones, and the products.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from emulator.kernels import convolutions
from emulator.kernels.conv_by_xla import weight_gradient_by_tap_sums
from emulator.kernels.convolutions import CANDIDATES
from emulator.kernels.problems import Candidate, Convolution, applicable
from emulator.kernels.windows import Window
from emulator.native import library
from emulator.native.library import native_library
from emulator.ops.registry import load_ops

_MOST = max(map(len, CANDIDATES.values()))
"""Candidates that a part of a convolution may have."""


@contextmanager
def _nth(nth: int) -> Iterator[Counter[str]]:
    """While active, each convolution takes its n-th candidate, counted on from the first where it
    has fewer; native kernels apply to small ones, too. Gives how often each was taken."""
    taken: Counter[str] = Counter()

    def choose(p: Convolution, candidates: Sequence[Candidate[Convolution]]) -> Any:
        found = applicable(p, candidates)
        candidate = found[nth % len(found)]
        taken[f"{p.part.name}: {candidate.name}"] += 1
        return candidate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "_LEAST_FOR_NATIVE", 0)
        patch.setattr(library, "_LEAST_OF_A_SHARE", 1)
        patch.setattr(convolutions, "choose", choose)
        yield taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    bad: float = 1.0


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    """Sizes and channels from 0, kernels that are larger than the map, paddings of any size."""
    n = draw(st.integers(1, 3))
    groups, channels, features = draw(
        st.sampled_from(
            [(1, 1, 1), (1, 2, 3), (1, 3, 2), (2, 1, 1), (2, 1, 2), (2, 2, 1), (16, 1, 1)]
        )
    )
    transposed = draw(st.booleans())

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(n))

    batch = draw(st.sampled_from([0, 1, 1, 2, 17]))
    channels *= draw(st.sampled_from([0, 1, 1, 1, 1]))
    first, second = (channels * groups, features) if transposed else (features * groups, channels)
    kernel = each(1, 5 if n < 3 else 3)
    tiles = draw(st.integers(0, 3)) == 0  # windows that lie side by side
    size = (
        tuple(k * draw(st.integers(0, 2)) for k in kernel) if tiles else each(0, 7 if n < 3 else 4)
    )
    return _Case(
        x=(batch, channels * groups, *size),
        w=(first, second, *kernel),
        stride=kernel if tiles else each(1, 3),
        padding=(0,) * n if tiles else each(0, 4),
        dilation=(1,) * n if tiles else each(1, 2),
        transposed=transposed,
        output_padding=each(0, 2) if transposed else (0,) * n,
        groups=groups,
        # Where padding cuts a place off, torch's transposed weight gradient multiplies it by zero.
        bad=1.0 if transposed else draw(st.sampled_from([1.0, math.nan])),
    )


def _random(seed: int, shape: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _check(case: _Case) -> Counter[str]:
    """Compare each kernel's values and gradients with torch's.

    Returns:
        How often each was taken; none where torch refuses the case.
    """
    x, w = (_random(i, s) for i, s in enumerate((case.x, case.w)))
    x.view(-1)[:1] = case.bad
    x, w = x.requires_grad_(), w.requires_grad_()
    features = case.w[1] * case.groups if case.transposed else case.w[0]
    b = _random(2, (features,)).requires_grad_()
    rest = (case.stride, case.padding, case.dilation, case.transposed, case.output_padding)
    taken: Counter[str] = Counter()
    try:
        y = torch.convolution(x, w, b, *rest, case.groups)
    except RuntimeError:
        return taken
    g = _random(3, y.shape)
    wanted = (y, *torch.autograd.grad(y, (x, w, b), g))
    arrays = [jnp.asarray(t.detach().numpy()) for t in (x, w, b, g)]
    lower = load_ops()["aten.convolution.default"].lower

    def both(x: jax.Array, w: jax.Array, b: jax.Array, g: jax.Array) -> Any:
        y, pull = jax.vjp(lambda x, w, b: lower(x, w, b, *rest, case.groups), x, w, b)
        return y, *pull(g)

    # Terms of a sum of normal numbers, at most.
    terms = max(math.prod(case.w[1:]), math.prod(case.w) // max(case.w[1], 1), g.numel())
    before: set[str] = set()
    for nth in range(_MOST):
        with _nth(nth) as now:
            lowered: Any = jax.jit(lambda *a: both(*a)).lower(*arrays)
        taken += now
        if set(now) <= before:
            continue
        before |= set(now)
        for what, a, t in zip("yxwb", lowered.compile()(*arrays), wanted, strict=True):
            np.testing.assert_allclose(
                a, t.detach(), rtol=1e-6, atol=4e-7 * (4 + terms),
                err_msg=f"{what} of {case} by {set(now)}",
            )  # fmt: skip
    return taken


def _case(x: Sequence[int], w: Sequence[int], padding: Any, groups: int, **other: Any) -> _Case:
    n = len(x) - 2
    sides = (padding,) * n if isinstance(padding, int) else padding
    fields: dict[str, Any] = {
        "stride": (1,) * n, "dilation": (1,) * n, "transposed": False, "output_padding": (0,) * n,
        **other,
    }  # fmt: skip
    return _Case(x=tuple(x), w=tuple(w), padding=sides, groups=groups, **fields)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_case((3, 16, 1, 1), (16, 1, 5, 5), 2, 16), id="larger than a point"),
        pytest.param(_case((2, 2, 2), (2, 1, 7), 3, 2), id="larger than the map"),
        pytest.param(_case((1, 4, 2), (4, 2, 7), 3, 2, stride=(3,)), id="in groups of two"),
        pytest.param(_case((0, 3, 4), (2, 3, 3), 1, 1), id="no image"),
        pytest.param(_case((0, 4, 2, 2), (4, 1, 3, 3), 1, 4), id="no image, single channels"),
        pytest.param(
            _case((0, 2, 3), (2, 3, 3), 0, 1, transposed=True, stride=(2,)), id="no image, back"
        ),
        pytest.param(_case((2, 0, 5), (3, 0, 3), 0, 1), id="no channel"),
        pytest.param(_case((0, 2, 0), (3, 2, 3), 2, 1), id="no place"),
        # Of the form that drawn convolutions ended the process with: one axis is shorter than the
        # kernel.
        *(
            pytest.param(_case(x, w, padding, 1, stride=stride), id=f"short {x}")
            for x, w, stride, padding in (
                ((6, 1, 6, 2), (6, 1, 2, 3), (2, 2), (1, 2)),
                ((6, 20, 1, 4), (20, 20, 2, 2), (2, 2), (1, 1)),
                ((20, 2, 4, 3), (2, 2, 2, 3), (2, 3), (1, 2)),
                ((2, 33, 4, 1), (5, 33, 2, 3), (2, 3), (1, 1)),
                ((1, 2, 6, 4, 6), (2, 2, 2, 2, 3), (2, 3, 2), (1, 1, 1)),
            )
        ),
    ],
)
def test_small_ones(case: _Case) -> None:
    found = _check(case)
    assert bool(found) == (0 not in case.x)


@given(case=_cases())
@settings(max_examples=5, deadline=None)
def test_drawn_ones(case: _Case) -> None:
    _check(case)


@pytest.mark.slow
@pytest.mark.campaign
def test_many_drawn_ones() -> None:
    """Of every kind, by every kernel that works on so few numbers."""
    taken: Counter[str] = Counter()
    empty = Counter[bool]()

    @given(case=_cases())
    @settings(max_examples=400, deadline=None)
    def run(case: _Case) -> None:
        taken.update(_check(case))
        empty[0 in case.x] += 1

    run()
    assert min(empty.values()) > 20
    names = {f"{part.name}: {c.name}" for part, all_ in CANDIDATES.items() for c in all_}
    if native_library() is None:
        names = {name for name in names if "native" not in name}
    assert names == set(taken), taken


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
    x = _random(0, (images, groups, 7)).to(dtype)
    x[0, 0, 3] = bad
    w = torch.zeros(groups * each, 1, kernel, requires_grad=True)
    y = torch.conv1d(
        torch.nn.functional.pad(x.float(), (low, high)), w, None, stride, 0, dilation, groups
    )
    g = _random(1, y.shape).to(dtype)
    (wanted,) = torch.autograd.grad(y, w, g.float())
    window = Window(
        kernel=(kernel,), stride=(stride,), dilation=(dilation,), low=(low,), high=(high,),
        out=(out,),
    )  # fmt: skip
    jx, jg = (jnp.asarray(t.float().numpy(), str(dtype).split(".")[1]) for t in (x, g))
    got = weight_gradient_by_tap_sums(jx, jg, window, groups, tuple(w.shape))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=4e-7 * (4 + images * out))
