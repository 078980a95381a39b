"""Lowerings of interpolation: nearest, linear, cubic, with and without antialiasing.

Coordinates are computed as torch's CPU kernels do it, in float32 for all types but float64:
where an output falls between two inputs depends on that rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.ops._precision import widen
from emulator.ops._resample import Table, resample, table
from emulator.ops.registry import op

MakeTable = Callable[[int, int, float | None, Any], Table]
"""``(input size, output size, scale factor, numpy float type) -> Table`` for one axis."""


def _nearest(offset: float) -> MakeTable:
    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        del real  # torch takes float32 for every dtype here
        step = np.float32(1.0 / scale if scale else size / out)
        at = (np.arange(out, dtype=np.float32) + np.float32(offset)) * step
        index = np.minimum(np.floor(at).astype(np.int64), size - 1)
        return table([[(int(i), 1.0)] for i in index], size)

    return make


def _step(size: int, out: int, scale: float | None, align: bool, real: Any) -> Any:
    if align:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1.0 / scale) if scale else real(size) / real(out)


def _sources(size: int, out: int, scale: float | None, align: bool, real: Any) -> np.ndarray:
    """Position of each output between the inputs."""
    step = _step(size, out, scale, align, real)
    at = np.arange(out, dtype=real)
    return at * step if align else (at + real(0.5)) * step - real(0.5)


def _linear(align: bool) -> MakeTable:
    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        rows = []
        for at in np.maximum(_sources(size, out, scale, align, real), real(0)):
            low = min(int(at), size - 1)
            part = min(max(at - real(low), real(0)), real(1))
            high = min(low + 1, size - 1)
            rows.append([(low, float(real(1) - part)), (high, float(part))])
        return table(rows, size)

    return make


def _cubic_weight(x: Any, a: Any) -> Any:
    """Cubic convolution kernel with parameter a (Keys 1981)."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else x * 0


def _cubic(align: bool) -> MakeTable:
    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        rows = []
        for at in _sources(size, out, scale, align, real):
            low = math.floor(at)
            part = at - real(low)
            row = []
            for j in range(-1, 3):
                weight = _cubic_weight(part - real(j), real(-0.75))
                row.append((min(max(low + j, 0), size - 1), float(weight)))
            rows.append(row)
        return table(rows, size)

    return make


def _hat(x: Any, _a: Any) -> Any:
    return max(1 - abs(x), 0)


def _antialiased(kernel: Callable[[Any, Any], Any], width: int, align: bool) -> MakeTable:
    """A filter as wide as the spacing of the outputs when shrinking."""

    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        step = _step(size, out, scale, align, real)
        spread = max(step, real(1))
        support = real(width * 0.5) * spread
        rows = []
        for o in range(out):
            center = step * (real(o) + real(0.5))
            low = max(int(center - support + real(0.5)), 0)
            high = min(int(center + support + real(0.5)), size)
            weights = [
                kernel((real(j) - center + real(0.5)) / spread, real(-0.5))
                for j in range(low, high)
            ]
            total = sum(weights)
            rows.append([(low + j, float(w / total)) for j, w in enumerate(weights)])
        return table(rows, size)

    return make


def _interpolate(
    x: jax.Array, size: Sequence[int], scales: Sequence[float | None], make: MakeTable
) -> jax.Array:
    y = widen(x)
    real = np.float64 if x.dtype == jnp.float64 else np.float32
    first = x.ndim - len(size)
    for d, (out, scale) in enumerate(zip(size, scales, strict=True)):
        axis = first + d
        t = make(x.shape[axis], out, scale, real)
        y = resample(y, t, axis)
    return y.astype(x.dtype)


def _sizes(
    x: jax.Array, size: Sequence[int] | None, factors: Sequence[float] | None
) -> tuple[list[int], list[float | None]]:
    """Output sizes and scale factors of a ``.vec`` overload, which is given one of the two."""
    if size is not None:
        return list(size), [None] * len(size)
    factors = list(factors or ())
    first = x.ndim - len(factors)
    return [int(x.shape[first + d] * f) for d, f in enumerate(factors)], list(factors)


def _register_nearest(name: str, offset: float) -> None:
    make = _nearest(offset)

    @op(f"aten.{name}.vec", reads=())
    def vec(x: jax.Array, size: Sequence[int] | None, factors: Sequence[float] | None) -> jax.Array:
        return _interpolate(x, *_sizes(x, size, factors), make)

    @op(f"aten.{name}.default", reads=())
    def default(x: jax.Array, size: Sequence[int], *scales: float | None) -> jax.Array:
        return _interpolate(x, size, scales or [None] * len(size), make)


def _register_aligned(name: str, of: Callable[[bool], MakeTable]) -> None:
    @op(f"aten.{name}.vec", reads=())
    def vec(
        x: jax.Array,
        size: Sequence[int] | None,
        align_corners: bool,
        factors: Sequence[float] | None,
    ) -> jax.Array:
        return _interpolate(x, *_sizes(x, size, factors), of(align_corners))

    @op(f"aten.{name}.default", reads=())
    def default(
        x: jax.Array, size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> jax.Array:
        return _interpolate(x, size, scales or [None] * len(size), of(align_corners))


for _n in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_n}d", 0.0)
    _register_nearest(f"_upsample_nearest_exact{_n}d", 0.5)
for _name in ("linear1d", "bilinear2d", "trilinear3d"):
    _register_aligned(f"upsample_{_name}", _linear)
_register_aligned("upsample_bicubic2d", _cubic)
_register_aligned("_upsample_bilinear2d_aa", lambda align: _antialiased(_hat, 2, align))
_register_aligned("_upsample_bicubic2d_aa", lambda align: _antialiased(_cubic_weight, 4, align))
