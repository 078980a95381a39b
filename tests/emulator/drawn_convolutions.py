"""Drawn convolutions by oneDNN, for a process whose settings of oneDNN are what is tested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.choice import applicable
from emulator.kernels.convolutions import CANDIDATES, convolve, input_gradient
from emulator.kernels.problems import Convolution, Part
from emulator.kernels.rules import PLAIN, chosen_by
from emulator.kernels.unkept import kept_nowhere
from emulator.kernels.windows import Window

_CHANNELS = (1, 2, 3, 5, 8, 12, 16, 17, 31, 32, 64, 65)
_SIZES = {1: 64, 2: 20, 3: 8}
"""Most places along an axis, by the number of axes."""


def _drawn(rng: np.random.Generator) -> tuple[Convolution, Window] | None:
    """A convolution with any padding that no window is lost in; None where nothing comes out."""
    depthwise = rng.random() < 0.3
    axes = int(rng.choice([1, 2, 2, 3]))
    size = tuple(int(n) for n in rng.integers(1, _SIZES[axes], axes))
    kernel = tuple(int(n) for n in rng.integers(1, 6, axes))
    stride = tuple(int(n) for n in rng.choice([1, 1, 2, 3], axes))
    dilation = tuple(int(n) for n in rng.choice([1, 1, 2, 4], axes))
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    low, high = (tuple(int(rng.integers(0, r + 1)) for r in reach) for _ in range(2))
    out = tuple(
        (n + a + b - r - 1) // s + 1
        for n, a, b, r, s in zip(size, low, high, reach, stride, strict=True)
    )
    if min(out) < 1:
        return None
    channels, features = (int(n) for n in rng.choice(_CHANNELS, 2))
    if depthwise:
        channels = features = 16 * int(rng.integers(1, 9))
    window = Window(kernel=kernel, stride=stride, dilation=dilation, low=low, high=high, out=out)
    problem = Convolution(
        part=Part.FORWARD,
        dtype="float32",
        batch=int(rng.integers(1, 9)),
        channels=channels,
        features=features,
        groups=channels if depthwise else 1,
        size=size,
        out=out,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        low=low,
    )
    return problem, window


def _value(compute: Callable[..., Any], *arrays: jax.Array) -> np.ndarray:
    with kept_nowhere(), chosen_by(PLAIN):
        compiled: Any = jax.jit(compute).lower(*arrays).compile()
    return np.asarray(compiled(*arrays))


def _check(
    p: Convolution, plain: Callable[..., Any], by_hand: Sequence[Any], *arrays: jax.Array
) -> int:
    """Compare each candidate that calls oneDNN for a part with the plain one; returns how many."""
    candidates = [c for c in applicable(p, CANDIDATES[p.part]) if c.onednn is not None or c.native]
    if not candidates:
        return 0
    wanted = _value(lambda a, b: plain(a, b, *by_hand), *arrays)
    for c in candidates:
        got = _value(functools.partial(_run, c.run, by_hand), *arrays)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=3e-4, err_msg=str(p))
    return len(candidates)


def _run(run: Callable[..., Any], by_hand: Sequence[Any], a: jax.Array, b: jax.Array) -> Any:
    return run(a, b, *by_hand)


def run_by_onednn(seed: int, count: int) -> None:
    """Compute drawn convolutions and input gradients by each candidate of oneDNN's that applies.

    Args:
        seed: Of the generator.
        count: How many are computed at least.

    Raises:
        AssertionError: If one differs from the plain one by more than the order of a sum makes:
            sums of at most 125 taps of 65 channels of standard normal numbers.
    """
    rng = np.random.default_rng(seed)
    computed = 0
    while computed < count:
        drawn = _drawn(rng)
        if drawn is None:
            continue
        p, window = drawn
        x = jnp.asarray(rng.standard_normal((p.batch, p.channels, *p.size), np.float32))
        g = jnp.asarray(rng.standard_normal((p.batch, p.features, *p.out), np.float32))
        kernels = (p.features, p.channels // p.groups, *p.kernel)
        w = jnp.asarray(rng.standard_normal(kernels, np.float32))
        computed += _check(p, convolve, (window, p.groups), x, w)
        p = replace(p, part=Part.INPUT_GRADIENT)
        computed += _check(p, input_gradient, (window, p.groups, p.size), g, w)
    print(f"computed {computed} convolutions")
