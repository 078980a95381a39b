"""Sliding windows over the last axes of an array: cutting them out, and adding them back.

A *tap* is the strided slice that holds one position of the window for every output.
Pooling and the weight gradient of a convolution are sums and products over taps; XLA
compiles slices into tight loops, where its own windowed gradients run element by element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from emulator.errors import OpLimit
from emulator.kernels.slices import strided

_MANY_PHASES = 64
"""Strides of more phases are undone tap by tap, so that the code does not grow with them."""

_MOST_PADDED = 2**26
"""Elements of padded data, where that is more than 16 times the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A sliding window over ``len(kernel)`` trailing axes.

    Args:
        kernel, stride, dilation: Per axis.
        low, high: Padding per axis, before and after the data.
        out: Number of positions per axis.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes that the window slides over."""
        return len(self.kernel)

    def positions(self) -> list[tuple[int, ...]]:
        """Tap coordinates in row-major order."""
        return list(itertools.product(*(range(k) for k in self.kernel)))

    def tiles(self, size: tuple[int, ...]) -> bool:
        """Whether windows lie side by side and cover the data, nothing left over.

        Args:
            size: Spatial sizes of the data.

        Returns:
            False for windows of one element.

        Example:
            >>> two = {"kernel": (2,), "stride": (2,), "dilation": (1,), "high": (0,), "out": (4,)}
            >>> Window(**two, low=(0,)).tiles((8,)), Window(**two, low=(1,)).tiles((8,))
            (True, False)
        """
        covered = tuple(o * k for o, k in zip(self.out, self.kernel, strict=True))
        dense = max(self.dilation, default=1) == 1 and not any(self.low)
        return dense and self.kernel == self.stride and covered == size and covered != self.out

    def padding(self, size: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Padding before and after the data that windows read, per axis.

        ``high`` may be more than that, or less, where a stride ends before the data do.

        Args:
            size: Sizes of the data.

        Example:
            >>> shape = {"kernel": (3, 2), "stride": (1, 2), "dilation": (1, 1), "out": (4, 2)}
            >>> Window(**shape, low=(1, 0), high=(1, 1)).padding((4, 4))
            ((1, 1), (0, 0))
        """
        axes = zip(self.out, self.stride, self.dilation, self.kernel, self.low, size, strict=True)
        return tuple(
            (low, max(0, (o - 1) * s + d * (k - 1) + 1 - low - n)) for o, s, d, k, low, n in axes
        )

    def along(self, d: int, size: tuple[int, ...]) -> Window:
        """The window along axis ``d`` alone, over data of unpadded sizes ``size``."""

        def only(field: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
            return other[:d] + field[d : d + 1] + other[d + 1 :]

        ones, zeros = (1,) * self.ndim, (0,) * self.ndim
        return Window(
            kernel=only(self.kernel, ones),
            stride=only(self.stride, ones),
            dilation=only(self.dilation, ones),
            low=only(self.low, zeros),
            high=only(self.high, zeros),
            out=only(self.out, size),
        )


def expand(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    """An int or a short list, as ATen passes sizes, for ``n`` axes."""
    if isinstance(value, int):
        return (value,) * n
    return tuple(value) * n if len(value) == 1 else tuple(value)


def pad(x: jax.Array, window: Window, value: jax.typing.ArrayLike, inner: int = 0) -> jax.Array:
    """Pad the window's axes by ``low`` and ``high`` with ``value``; negative padding crops.

    Args:
        x: Data ``(..., *size)``, or with further axes after those of the window.
        window: The window.
        value: What to pad with.
        inner: How many axes follow those of the window.

    Returns:
        The padded data.

    Raises:
        OpLimit: If it would be many times the data.
    """
    axes = x.shape[x.ndim - window.ndim - inner : x.ndim - inner]
    sides = zip(axes, window.low, window.high, strict=True)
    padded = math.prod(size + max(lo, 0) + max(hi, 0) for size, lo, hi in sides)
    padded *= x.size // max(math.prod(axes), 1)
    if padded > max(_MOST_PADDED, 16 * x.size):
        raise OpLimit(argument="the padded data, in elements,", found=padded, most=_MOST_PADDED)
    if not any(window.low) and not any(window.high):
        return x
    config = [(0, 0, 0)] * (x.ndim - window.ndim - inner)
    config += [(lo, hi, 0) for lo, hi in zip(window.low, window.high, strict=True)]
    config += [(0, 0, 0)] * inner
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def taps(x: jax.Array, window: Window, inner: int = 0) -> list[jax.Array]:
    """All taps of a padded array.

    Args:
        x: Padded data ``(..., *padded)``, or with further axes after those of the window.
        window: Its window.
        inner: How many axes follow those of the window.

    Returns:
        One ``(..., *out)`` slice per position, row-major.
    """
    lead = x.ndim - window.ndim - inner
    rest = list(x.shape[x.ndim - inner :])
    slices = []
    for position in window.positions():
        start = [t * d for t, d in zip(position, window.dilation, strict=True)]
        limit = [
            b + (o - 1) * s + 1 for b, o, s in zip(start, window.out, window.stride, strict=True)
        ]
        # One element needs no stride, see `strided`.
        strides = [s if o > 1 else 1 for o, s in zip(window.out, window.stride, strict=True)]
        slices.append(
            lax.slice(
                x,
                [0] * lead + start + [0] * inner,
                [*x.shape[:lead], *limit, *rest],
                [1] * lead + strides + [1] * inner,
            )
        )
    return slices


def stack_taps(x: jax.Array, window: Window) -> jax.Array:
    """All taps of a padded array in one, cut axis by axis.

    An axis at a time moves fewer elements than tap by tap, in longer runs.

    Args:
        x: Padded data ``(*lead, *padded)``.
        window: Its window.

    Returns:
        Array ``(*reversed(kernel), *lead, *out)``.
    """
    first = x.ndim - window.ndim
    for d in range(window.ndim):
        stride, step = window.stride[d], window.dilation[d]
        span = (window.out[d] - 1) * stride + 1
        axis = first + 2 * d  # each axis cut so far has put one more in front
        x = jnp.stack(
            [strided(x, t * step, t * step + span, stride, axis) for t in range(window.kernel[d])]
        )
    return x


def overlap_add(parts: jax.Array, window: Window, size: tuple[int, ...]) -> jax.Array:
    """Add stacked taps back to where :func:`stack_taps` cut them out: its transpose.

    Args:
        parts: Array ``(*reversed(kernel), *lead, *out)``.
        window: The window.
        size: Unpadded sizes of the trailing axes.

    Returns:
        Array ``(*lead, *size)``.
    """
    zero = jnp.zeros((), parts.dtype)
    for d in reversed(range(window.ndim)):
        stride, step = window.stride[d], window.dilation[d]
        whole = size[d] + window.low[d] + window.high[d]
        span = (window.out[d] - 1) * stride + 1
        axis = parts.ndim - 1 - window.ndim + d  # of one part
        config = [(0, 0, 0)] * (parts.ndim - 1)
        total: jax.Array | None = None
        for t in range(window.kernel[d]):
            config[axis] = (t * step, whole - t * step - span, stride - 1)
            term = lax.pad(parts[t], zero, config)
            total = term if total is None else total + term
        parts = jnp.zeros_like(parts[0]) if total is None else total
    first = parts.ndim - window.ndim
    start = [0] * first + list(window.low)
    stop = [*parts.shape[:first], *(lo + s for lo, s in zip(window.low, size, strict=True))]
    return lax.slice(parts, start, stop)


def overlap_add_rows(parts: jax.Array, window: Window, size: tuple[int, ...]) -> jax.Array:
    """:func:`overlap_add` for data whose last axis is not a window axis, row by row.

    Rows along that axis are added whole, and nothing is padded: at 16 and more elements a row
    this is up to twice as fast. The code grows with ``size``.

    Args:
        parts: Array ``(*reversed(kernel), *lead, *out, row)``.
        window: The window.
        size: Unpadded sizes of the window's axes.

    Returns:
        Array ``(*lead, *size, row)``.
    """
    for d in reversed(range(window.ndim)):
        stride, step, low = window.stride[d], window.dilation[d], window.low[d]
        axis = parts.ndim - 2 - window.ndim + d  # of one part
        empty = jnp.zeros_like(lax.slice_in_dim(parts[0], 0, 1, axis=axis))
        rows = []
        for at in range(low, low + size[d]):
            total: jax.Array | None = None
            for t in range(window.kernel[d]):
                out, rest = divmod(at - t * step, stride)
                if not rest and 0 <= out < window.out[d]:
                    term = _row(parts, t, out, axis)
                    total = term if total is None else total + term
            rows.append(empty if total is None else total)
        parts = jnp.concatenate(rows, axis)
    return parts


def _row(parts: jax.Array, part: int, at: int, axis: int) -> jax.Array:
    """``parts[part]`` at one place of an axis of its own: one slice, which XLA fuses."""
    start, stop = [0] * parts.ndim, list(parts.shape)
    start[0], stop[0] = part, part + 1
    start[axis + 1], stop[axis + 1] = at, at + 1
    return lax.squeeze(lax.slice(parts, start, stop), (0,))


def turned(w: jax.Array, groups: int) -> jax.Array:
    """Kernels ``(O, C / groups, ...)`` as ``(C, O / groups, ...)``, taps in reverse."""
    w = reversed_taps(w).reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    return w.reshape(-1, *w.shape[2:])


def reversed_taps(w: jax.Array) -> jax.Array:
    """Kernels with their taps in reverse, along all spatial axes at once."""
    return lax.rev(w.reshape(*w.shape[:2], -1), (2,)).reshape(w.shape)


def untaps(
    parts: Sequence[jax.Array], window: Window, size: tuple[int, ...], inner: int = 0
) -> jax.Array:
    """Add taps back to where :func:`taps` cut them out: its transpose.

    Works phase by phase: all taps that land on the same residue modulo the stride are
    shifted and added, then the phases are interleaved.

    Args:
        parts: One ``(..., *out)`` array per position, row-major.
        window: The window.
        size: Unpadded sizes of the window's axes.
        inner: How many axes follow those of the window.

    Returns:
        Array ``(..., *size)``.
    """
    n = window.ndim
    first = parts[0].ndim - n - inner
    lead, tail = parts[0].shape[:first], parts[0].shape[first + n :]
    if math.prod(window.stride) > _MANY_PHASES:
        return _untaps_apart(parts, window, size, inner)
    padded = [s + lo + hi for s, lo, hi in zip(size, window.low, window.high, strict=True)]
    coarse = [-(-p // s) for p, s in zip(padded, window.stride, strict=True)]
    zero = jnp.zeros((), parts[0].dtype)
    phases: dict[tuple[int, ...], jax.Array] = {}
    for position, part in zip(window.positions(), parts, strict=True):
        offset = [t * d for t, d in zip(position, window.dilation, strict=True)]
        phase = tuple(o % s for o, s in zip(offset, window.stride, strict=True))
        config = [(0, 0, 0)] * len(lead)
        for at, s, c, o in zip(offset, window.stride, coarse, window.out, strict=True):
            config.append((at // s, c - at // s - o, 0))
        term = lax.pad(part, zero, config + [(0, 0, 0)] * inner)
        phases[phase] = phases[phase] + term if phase in phases else term
    if math.prod(window.stride) == 1:
        y = phases[(0,) * n]
    else:
        empty = jnp.broadcast_to(zero, (*lead, *coarse, *tail))
        order = itertools.product(*(range(s) for s in window.stride))
        y = jnp.stack([phases.get(p, empty) for p in order], axis=first + n)
        y = y.reshape(*lead, *coarse, *window.stride, *tail)
        axes = list(range(first))
        for d in range(n):
            axes += [first + d, first + n + d]
        axes += range(first + 2 * n, y.ndim)
        y = y.transpose(axes).reshape(
            *lead, *(c * s for c, s in zip(coarse, window.stride, strict=True)), *tail
        )
    start = [0] * first + list(window.low) + [0] * inner
    stop = [*lead, *(lo + s for lo, s in zip(window.low, size, strict=True)), *tail]
    return lax.slice(y, start, stop)


def _untaps_apart(
    parts: Sequence[jax.Array], window: Window, size: tuple[int, ...], inner: int
) -> jax.Array:
    """See :func:`untaps`: every tap spread over the whole, one after the other."""
    first = parts[0].ndim - window.ndim - inner
    lead, tail = parts[0].shape[:first], parts[0].shape[first + window.ndim :]
    total = jnp.zeros((*lead, *size, *tail), parts[0].dtype)
    for position, part in zip(window.positions(), parts, strict=True):
        config = [(0, 0, 0)] * len(lead)
        for d, t in enumerate(position):
            offset = t * window.dilation[d] - window.low[d]
            span = (window.out[d] - 1) * window.stride[d] + 1
            config.append((offset, size[d] - offset - span, window.stride[d] - 1))
        config += [(0, 0, 0)] * inner
        total = total + lax.pad(part, jnp.zeros((), part.dtype), config)
    return total
