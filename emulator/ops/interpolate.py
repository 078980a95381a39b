"""Lowerings of interpolation: nearest, linear, cubic, with and without antialiasing.

Coordinates are computed as torch's CPU kernels do it, in float32 for all types but float64:
where an output falls between two inputs depends on that rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.precision import widen, widened
from emulator.ops._resample import Table, check_places, dense_table, resample, span_entries
from emulator.ops._reshape import merged
from emulator.ops.registry import op

MakeTable = Callable[[int, int, float | None, Any], Table]
"""``(input size, output size, scale factor, numpy float type) -> Table`` for one axis."""

_SMALL = 128
"""Up to this sum of the output's sizes torch's kernel of nearest neighbours takes short cuts."""


def _counts(scale: float | None) -> TypeGuard[float]:
    """Whether torch takes a scale factor that it is given."""
    return scale is not None and scale > 0


def _copy(size: int) -> Table:
    """An axis that keeps its size is copied, whatever the scale factor that led to it."""
    index = np.arange(size)[:, None]
    return dense_table(index, np.ones(index.shape), size)


def _nearest(offset: float) -> MakeTable:
    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        del real  # torch takes float32 for every dtype here
        step = np.float32(1.0 / scale if _counts(scale) else size / out)
        at = (np.arange(out, dtype=np.float32) + np.float32(offset)) * step
        index = np.clip(np.floor(at).astype(np.int64), 0, size - 1)[:, None]
        return dense_table(index, np.ones(index.shape), size)

    return make


def _nearest_by_sizes(size: int, out: int, scale: float | None, real: Any) -> Table:
    """Short cuts for axes that keep their size or double it, whatever the scale factor says."""
    if out not in (size, 2 * size):
        return _nearest(0.0)(size, out, scale, real)
    index = (np.arange(out) * size // out)[:, None]
    return dense_table(index, np.ones(index.shape), size)


def _step(size: int, out: int, scale: float | None, align: bool, real: Any) -> Any:
    if align:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1.0 / scale) if _counts(scale) else real(size) / real(out)


def _sources(size: int, out: int, scale: float | None, align: bool, real: Any) -> np.ndarray:
    """Position of each output between the inputs."""
    step = _step(size, out, scale, align, real)
    at = np.arange(out, dtype=real)
    return at * step if align else (at + real(0.5)) * step - real(0.5)


def _linear(align: bool) -> MakeTable:
    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        if out == size:
            return _copy(size)
        at = np.maximum(_sources(size, out, scale, align, real), real(0))
        low = np.minimum(at, size - 1).astype(np.int64)
        part = np.clip(at - low.astype(real), real(0), real(1))
        index = np.stack([low, np.minimum(low + 1, size - 1)], axis=1)
        return dense_table(index, np.stack([real(1) - part, part], axis=1), size)

    return make


def _cubic_near(x: Any, a: Any = -0.75) -> Any:
    """The cubic convolution kernel with parameter a (Keys 1981), for distances up to 1."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _cubic_far(x: Any, a: Any = -0.75) -> Any:
    """The same for distances from 1 to 2."""
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _cubic_weight(x: np.ndarray, a: Any) -> np.ndarray:
    """The same for distances of either sign, 0 from 2 on."""
    x = np.abs(x)
    return np.where(x <= 1, _cubic_near(x, a), np.where(x < 2, _cubic_far(x, a), x * 0))


def _cubic(align: bool) -> MakeTable:
    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        at = _sources(size, out, scale, align, real)
        low = np.floor(at)
        part = at - low
        # Two before the first place and two behind the last all are the end itself.
        place = np.clip(low, -2, size + 1).astype(np.int64)
        steps = range(-1, 3)
        weight = [_cubic_weight(part - real(j), real(-0.75)) for j in steps]
        index = [np.clip(place + j, 0, size - 1) for j in steps]
        return dense_table(np.stack(index, axis=1), np.stack(weight, axis=1), size)

    return make


def _hat(x: np.ndarray, _a: Any) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _antialiased(
    kernel: Callable[[np.ndarray, Any], np.ndarray], width: int, align: bool
) -> MakeTable:
    """A filter as wide as the spacing of the outputs when shrinking."""

    def make(size: int, out: int, scale: float | None, real: Any) -> Table:
        step = _step(size, out, scale, align, real)
        spread = max(step, real(1))
        support = real(width * 0.5) * spread
        center = step * (np.arange(out, dtype=real) + real(0.5))
        low = np.trunc(np.clip(center - support + real(0.5), 0, size)).astype(np.int64)
        high = np.trunc(np.clip(center + support + real(0.5), 0, size)).astype(np.int64)
        source, target = span_entries(low, np.maximum(high - low, 0))
        at = (source.astype(real) - center[target] + real(0.5)) / spread
        weight = kernel(at, real(-0.5))
        total = np.zeros(out, real)
        np.add.at(total, target, weight)  # one after the other, as torch adds them
        return Table(
            source=source,
            target=target,
            weight=(weight / total[target]).astype(np.float64),
            size=size,
            out=out,
        )

    return make


def _interpolate(
    x: jax.Array,
    size: Sequence[int],
    scales: Sequence[float | None],
    make: MakeTable,
    back: MakeTable | None = None,
) -> jax.Array:
    """Resample every axis of ``size``; ``back`` makes other tables for the gradient."""
    y = widen(x)
    real = np.float64 if x.dtype == jnp.float64 else np.float32
    first = x.ndim - len(size)
    if 0 in (*x.shape[:first], *size):
        return jnp.zeros((*x.shape[:first], *size), x.dtype)
    for d, (out, scale) in enumerate(zip(size, scales, strict=True)):
        axis = first + d
        check_places(x.shape[axis], out)
        t = make(x.shape[axis], out, scale, real)
        y = resample(y, t, axis, None if back is None else back(x.shape[axis], out, scale, real))
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


def _one_each(size: Sequence[int], scales: Sequence[float | None]) -> list[float | None]:
    """Scale factors of a ``.default`` overload; those at the end may be left out."""
    return [*scales, *[None] * (len(size) - len(scales))]


def _register_nearest(name: str, offset: float) -> None:
    def run(x: jax.Array, size: list[int], scales: list[float | None]) -> jax.Array:
        make = _nearest(offset)
        if offset:
            return _interpolate(x, size, scales, make)
        # Torch's gradient takes the short cuts always, its forward pass in small maps.
        small = len(size) > 1 and sum(size) <= _SMALL
        return _interpolate(
            x, size, scales, _nearest_by_sizes if small else make, _nearest_by_sizes
        )

    @op(f"aten.{name}.vec", cheap=False, moves=True, complex=False)
    def vec(x: jax.Array, size: Sequence[int] | None, factors: Sequence[float] | None) -> jax.Array:
        return run(x, *_sizes(x, size, factors))

    @op(f"aten.{name}.default", cheap=False, moves=True, complex=False)
    def default(x: jax.Array, size: Sequence[int], *scales: float | None) -> jax.Array:
        return run(x, list(size), _one_each(size, scales))


def _or_copy(make: MakeTable) -> MakeTable:
    """Copy an axis that keeps its size: torch skips its pass, but not that of the gradient."""

    def skipping(size: int, out: int, scale: float | None, real: Any) -> Table:
        return _copy(size) if out == size else make(size, out, scale, real)

    return skipping


def _register_aligned(
    name: str, of: Callable[[bool], MakeTable], antialias: bool, flops: int
) -> None:
    """Register both forms; an element of the result takes so many operations."""

    def run(x: jax.Array, size: list[int], scales: list[float | None], align: bool) -> jax.Array:
        make = of(align)
        return _interpolate(x, size, scales, _or_copy(make) if antialias else make, make)

    @op(f"aten.{name}.vec", reads=(), flops=("results", flops))
    def vec(
        x: jax.Array,
        size: Sequence[int] | None,
        align_corners: bool,
        factors: Sequence[float] | None,
    ) -> jax.Array:
        return run(x, *_sizes(x, size, factors), align_corners)

    @op(f"aten.{name}.default", reads=(), flops=("results", flops))
    def default(
        x: jax.Array, size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> jax.Array:
        return run(x, list(size), _one_each(size, scales), align_corners)


for _n in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_n}d", 0.0)
    _register_nearest(f"_upsample_nearest_exact{_n}d", 0.5)
# Of so many neighbours, each with a weight.
for _name, _flops in (("linear1d", 4), ("bilinear2d", 8), ("trilinear3d", 16)):
    _register_aligned(f"upsample_{_name}", _linear, False, _flops)
_register_aligned("upsample_bicubic2d", _cubic, False, 32)
_register_aligned("_upsample_bilinear2d_aa", lambda align: _antialiased(_hat, 2, align), True, 8)
_register_aligned(
    "_upsample_bicubic2d_aa", lambda align: _antialiased(_cubic_weight, 4, align), True, 32
)


BILINEAR, NEAREST, BICUBIC = 0, 1, 2
"""ATen's numbers for ``interpolation_mode``."""
ZEROS, BORDER, REFLECTION = 0, 1, 2
"""ATen's numbers for ``padding_mode``."""


def _to_pixels(at: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """Coordinates in [-1, 1] as positions between pixels."""
    if align_corners:
        return (at + 1) / 2 * (size - 1)
    return ((at + 1) * size - 1) / 2


def _clipped(at: jax.Array, size: int) -> jax.Array:
    """Positions moved into the image; those on its edge or outside pass no gradient.

    NaN is moved to 0, as torch's processor instructions do it.
    """
    inside = (at > 0) & (at < size - 1)
    return jnp.where(inside, at, jnp.where(at > 0, float(size - 1), 0.0).astype(at.dtype))


def _padded(at: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    """Positions outside the image moved to where the padding mode reads."""
    if padding == ZEROS:
        return at
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            return jnp.zeros_like(at)
        # A triangle wave of period 2 * span.
        distance = jnp.where(at >= low, at - low, low - at)
        flips = lax.stop_gradient(jnp.floor(distance / span))
        rest = distance - flips * span
        at = jnp.where(flips % 2 == 0, rest, span - rest) + low
    return _clipped(at, size)


def _read(x: jax.Array, places: list[jax.Array]) -> jax.Array:
    """``x[n, c, places...]`` for integral places ``(N, *out)``; 0 outside the image."""
    sizes = x.shape[2:]
    valid = jnp.ones(places[0].shape, bool)
    flat = jnp.zeros(places[0].shape, jnp.int32)
    for at, size in zip(places, sizes, strict=True):
        valid &= (at >= 0) & (at <= size - 1)
        flat = flat * size + jnp.clip(at, 0, size - 1).astype(jnp.int32)
    n, c = x.shape[:2]
    values = jnp.take_along_axis(
        x.reshape(n, c, math.prod(sizes)), merged(flat[:, None], 2), axis=2
    ).reshape(n, c, *flat.shape[1:])
    return jnp.where(valid[:, None], values, 0)


def _linear_at(x: jax.Array, at: list[jax.Array]) -> jax.Array:
    low = [lax.stop_gradient(jnp.floor(a)) for a in at]
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product((0, 1), repeat=len(at)):
        weight = jnp.ones((), x.dtype)
        for up, a, lo in zip(corner, at, low, strict=True):
            weight = weight * (a - lo if up else 1 - (a - lo))
        places = [lo + up for up, lo in zip(corner, low, strict=True)]
        total = total + _read(x, places) * weight[:, None]
    return total


def _cubic_weights(part: jax.Array) -> list[jax.Array]:
    """Of the pixels at -1, 0, 1 and 2."""
    return [_cubic_far(part + 1), _cubic_near(part), _cubic_near(1 - part), _cubic_far(2 - part)]


def _cubic_at(x: jax.Array, at: list[jax.Array], padding: int, align_corners: bool) -> jax.Array:
    low = [lax.stop_gradient(jnp.floor(a)) for a in at]
    weights = [_cubic_weights(a - lo) for a, lo in zip(at, low, strict=True)]
    total = jnp.zeros((), x.dtype)
    for taps in itertools.product(range(4), repeat=2):
        places = [
            _padded(lo + (tap - 1), size, padding, align_corners)
            for tap, lo, size in zip(taps, low, x.shape[2:], strict=True)
        ]
        weight = weights[0][taps[0]] * weights[1][taps[1]]
        total = total + _read(x, places) * weight[:, None]
    return total


@op("aten.grid_sampler.default", "aten.grid_sampler_2d.default", flops=("results", 8))
@op("aten.grid_sampler_3d.default", flops=("results", 16))
@widened
def grid_sampler(
    x: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """Sample ``(N, C, ...)`` at the places that a grid ``(N, *out, 2 or 3)`` names.

    The grid counts from -1 to 1 along each axis, the last axis first.
    """
    sizes = x.shape[2:]
    at = [
        _to_pixels(grid[..., len(sizes) - 1 - d], size, align_corners)
        for d, size in enumerate(sizes)
    ]
    if interpolation_mode == BICUBIC:
        return _cubic_at(x, at, padding_mode, align_corners)
    at = [_padded(a, size, padding_mode, align_corners) for a, size in zip(at, sizes, strict=True)]
    if interpolation_mode == NEAREST:
        return _read(x, [lax.stop_gradient(jnp.round(a)) for a in at])
    return _linear_at(x, at)
