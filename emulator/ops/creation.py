"""Lowerings: tensors made from shapes and numbers, and copies."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.dtypes import TO_NUMPY
from emulator.errors import OpLimit
from emulator.op_facts.facts import Rule
from emulator.ops._promote import (
    DEFAULT_COMPLEX,
    DEFAULT_FLOAT,
    broadcast_to,
    cast,
    constant,
    converted,
    is_complex,
    is_float,
    is_inexact,
)
from emulator.ops.registry import op
from pef_schema.program import DType

Size = tuple[int, ...]

_made = partial(op, differentiable=False, moves=True)
_counted = partial(op, cheap=True, differentiable=False)


def stated_dtype(dtype: DType | None, default: Any = DEFAULT_FLOAT) -> np.dtype:
    """A dtype as it is asked for, else the default."""
    return np.dtype(default) if dtype is None else TO_NUMPY[dtype]


def _number_type(*numbers: complex) -> Any:
    """The dtype torch infers from python numbers."""
    if all(isinstance(n, bool) for n in numbers):
        return np.bool_
    if any(isinstance(n, complex) for n in numbers):
        return DEFAULT_COMPLEX
    return DEFAULT_FLOAT if any(isinstance(n, float) for n in numbers) else np.int64


@_made("aten.full.default", ranges=("number", 1))
def full(size: Size, value: Any, *, dtype: DType | None = None) -> jax.Array:
    """A tensor filled with one number."""
    return lax.full(size, constant(value, stated_dtype(dtype, _number_type(value))))


def _register_filled(
    value: int, names: tuple[str, ...], likes: tuple[str, ...], news: str, ranges: Rule | None
) -> None:
    """Tensors of one number by size, by the shape of another, and by size in another's dtype."""

    @_made(*(f"aten.{name}" for name in names), ranges=ranges)
    def filled(size: Size, *, dtype: DType | None = None) -> jax.Array:
        return lax.full(size, constant(value, stated_dtype(dtype)))

    @_made(*(f"aten.{name}.default" for name in likes), ranges=ranges)
    def like(x: jax.Array, *, dtype: DType | None = None) -> jax.Array:
        return lax.full(x.shape, constant(value, stated_dtype(dtype, x.dtype)))

    @_made(f"aten.{news}.default", ranges=ranges)
    def new(x: jax.Array, size: Size, *, dtype: DType | None = None) -> jax.Array:
        return lax.full(size, constant(value, stated_dtype(dtype, x.dtype)))


_register_filled(0, ("zeros.default",), ("zeros_like", "zero"), "new_zeros", ("constantly", 0, 0))
_register_filled(1, ("ones.default",), ("ones_like",), "new_ones", ("constantly", 1, 1))
# What torch leaves as it is in memory is zero here.
_register_filled(0, ("empty.memory_format",), ("empty_like",), "new_empty", None)


@_made("aten.empty_strided.default", "aten.empty_permuted.default")
def empty_strided(size: Size, order: Size, *, dtype: DType | None = None) -> jax.Array:
    """Zeros; strides and layouts have no meaning on the device."""
    del order
    return lax.full(size, constant(0, stated_dtype(dtype)))


@_made("aten.new_empty_strided.default")
def new_empty_strided(
    x: jax.Array, size: Size, stride: Size, *, dtype: DType | None = None
) -> jax.Array:
    """Zeros of another shape in the dtype of ``x``."""
    del stride
    return lax.full(size, constant(0, stated_dtype(dtype, x.dtype)))


@_made("aten.full_like.default", ranges=("number", 1))
def full_like(x: jax.Array, value: Any, *, dtype: DType | None = None) -> jax.Array:
    """One number in the shape of ``x``."""
    return lax.full(x.shape, constant(value, stated_dtype(dtype, x.dtype)))


@_made("aten.new_full.default", ranges=("number", 2))
def new_full(x: jax.Array, size: Size, value: Any, *, dtype: DType | None = None) -> jax.Array:
    """One number in another shape in the dtype of ``x``."""
    return lax.full(size, constant(value, stated_dtype(dtype, x.dtype)))


@_made("aten.scalar_tensor.default", ranges=("number", 0))
def scalar_tensor(value: float, *, dtype: DType | None = None) -> jax.Array:
    """A 0-d tensor."""
    return jnp.asarray(constant(value, stated_dtype(dtype)))


@op("aten.fill.Scalar", "aten.fill.Tensor", moves=True, ranges=("some_of", 1))
def fill(x: jax.Array, value: Any) -> jax.Array:
    """One number, which may be a 0-d tensor, in the shape and dtype of ``x``."""
    return broadcast_to(jnp.asarray(cast(value, x.dtype)), x.shape)


@op("aten.copy.default", moves=True)
def copy(x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    """``source`` in the shape and dtype of ``x``."""
    del non_blocking
    return broadcast_to(converted(source, x.dtype), x.shape)


@_counted("aten.arange.default", ranges=("counted",))
def arange(end: float, *, dtype: DType | None = None) -> jax.Array:
    """``0, 1, ...`` below ``end``."""
    return arange_step(0, end, dtype=dtype)


@_counted("aten.arange.start", "aten.arange.start_step", ranges=("counted",))
def arange_step(
    start: float, end: float, step: float = 1, *, dtype: DType | None = None
) -> jax.Array:
    """``start, start + step, ...`` up to but without ``end``."""
    floats = any(isinstance(n, float) for n in (start, end, step))
    kind = stated_dtype(dtype, DEFAULT_FLOAT if floats else np.int64)
    if is_float(kind) or floats:
        count = math.ceil((end - start) / step)
    else:
        count = -((start - end) // step)  # exact: a quotient of large integers would round
    wide = np.float64 if is_float(kind) else np.int64
    index = lax.iota(wide, max(int(count), 0))
    return (index * constant(step, wide) + constant(start, wide)).astype(kind)


@_counted("aten.range.default", "aten.range.step")
def range_(start: float, end: float, step: float = 1, *, dtype: DType | None = None) -> jax.Array:
    """``start, start + step, ...`` up to and including ``end``."""
    kind = stated_dtype(dtype)
    if is_float(kind):
        # torch's acc_type: the length of a half type is that of its arguments in float32
        wide = np.dtype(np.float32 if kind.itemsize == 2 else np.float64)
        with np.errstate(all="ignore"):
            first, last, by = (constant(n, wide) for n in (start, end, step))
            count = int((last - first) / by + wide.type(1))
    else:
        # each argument is cut to an integer before the length is counted
        wide = np.dtype(np.int64)
        low, high, stride = int(start), int(end), int(step)
        first, by = constant(low, wide), constant(stride, wide)
        count = abs(high - low) // abs(stride) * (1 if (high < low) == (stride < 0) else -1) + 1
    index = lax.iota(wide, max(count, 0))
    return (index * by + first).astype(kind)


@_made("aten.eye.default", "aten.eye.m")
def eye(n: int, m: int | None = None, *, dtype: DType | None = None) -> jax.Array:
    """Ones on the diagonal."""
    shape = (n, n if m is None else m)
    rows, columns = (lax.broadcasted_iota(np.int32, shape, axis) for axis in (0, 1))
    return (rows == columns).astype(stated_dtype(dtype))


def _equal_steps(start: Any, end: Any, steps: int, wide: Any) -> jax.Array:
    """Equal steps counted from the nearer end, as torch counts them."""
    start, end = jnp.asarray(start).astype(wide), jnp.asarray(end).astype(wide)
    if steps <= 1:
        return jnp.broadcast_to(start, (steps,))
    step = (end - start) / np.asarray(steps - 1, wide)
    index = lax.iota(np.int64, steps)
    up = start + step * index.astype(wide)
    down = end - step * (steps - 1 - index).astype(wide)
    return jnp.where(index < steps // 2, up, down)


@_counted(
    *("aten.linspace.default", "aten.linspace.Tensor_Tensor", "aten.linspace.Tensor_Scalar"),
    "aten.linspace.Scalar_Tensor",
    complex=True,
)
def linspace(start: Any, end: Any, steps: int, *, dtype: DType | None = None) -> jax.Array:
    """``steps`` numbers at equal distances, both ends included."""
    kind = stated_dtype(dtype)
    wide = kind if is_inexact(kind) else np.float64
    return _equal_steps(start, end, steps, wide).astype(kind)


@_counted(
    *("aten.logspace.default", "aten.logspace.Tensor_Tensor", "aten.logspace.Tensor_Scalar"),
    "aten.logspace.Scalar_Tensor",
    complex=True,
)
def logspace(
    start: Any, end: Any, steps: int, base: complex = 10.0, *, dtype: DType | None = None
) -> jax.Array:
    """Powers of a base whose exponents lie at equal distances."""
    kind = stated_dtype(dtype)
    wide = np.complex128 if is_complex(kind) else np.float64
    return jnp.power(constant(base, wide), _equal_steps(start, end, steps, wide)).astype(kind)


_MOST_OF_RECTANGLE = 2**28
"""Coordinates are written down when the graph is lowered, from a mask of the rectangle."""


def _triangle(row: int, col: int, offset: int, dtype: DType | None, *, lower: bool) -> jax.Array:
    if row * col > _MOST_OF_RECTANGLE:
        raise OpLimit(
            argument="the rectangle around the triangle, in elements,",
            found=row * col,
            most=_MOST_OF_RECTANGLE,
        )
    inside = np.tri(row, col, offset if lower else offset - 1, dtype=bool)
    return jnp.asarray(np.stack(np.nonzero(inside == lower)), stated_dtype(dtype, np.int64))


@_made("aten.tril_indices.default", complex=False)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: DType | None = None) -> jax.Array:
    """Coordinates of a lower triangle, shape (2, count)."""
    return _triangle(row, col, offset, dtype, lower=True)


@_made("aten.triu_indices.default", complex=False)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: DType | None = None) -> jax.Array:
    """Coordinates of an upper triangle, shape (2, count)."""
    return _triangle(row, col, offset, dtype, lower=False)


@op("aten.to.dtype", reads=(), cheap=True, complex=True, elements="same")
def to_dtype(x: jax.Array, dtype: DType, *flags: bool) -> jax.Array:
    """Another dtype."""
    del flags
    return converted(x, TO_NUMPY[dtype])


@op("aten.to.other", reads=(), cheap=True, complex=True, elements="same")
def to_other(x: jax.Array, other: jax.Array, *flags: bool) -> jax.Array:
    """Convert to the dtype of another tensor."""
    del flags
    return converted(x, other.dtype)


@op("aten.type_as.default", reads=(), cheap=True, complex=True, elements="same")
def type_as(x: jax.Array, other: jax.Array) -> jax.Array:
    """Convert to the dtype of another tensor."""
    return converted(x, other.dtype)


# -- window functions, which are numbers that are known when a program is lowered ----


def _window(values: np.ndarray, length: int, dtype: DType | None) -> jax.Array:
    """The first entries of a whole window, which of a periodic one has one more; 1 alone is 1."""
    values = np.ones(1) if length == 1 else values[:length]
    return jnp.asarray(values.astype(stated_dtype(dtype)))


@_counted(
    *("aten.hamming_window.default", "aten.hamming_window.periodic"),
    *("aten.hamming_window.periodic_alpha", "aten.hamming_window.periodic_alpha_beta"),
)
def hamming_window(
    length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DType | None = None,
) -> jax.Array:
    """``alpha - beta cos(2 pi n / N)``."""
    angle = 2 * math.pi * np.arange(length) / max(length - (not periodic), 1)
    return _window(alpha - beta * np.cos(angle), length, dtype)


@_counted("aten.hann_window.default", "aten.hann_window.periodic")
def hann_window(length: int, periodic: bool = True, *, dtype: DType | None = None) -> jax.Array:
    """``(1 - cos(2 pi n / N)) / 2``."""
    return hamming_window(length, periodic, 0.5, 0.5, dtype=dtype)


@_counted("aten.blackman_window.default", "aten.blackman_window.periodic")
def blackman_window(length: int, periodic: bool = True, *, dtype: DType | None = None) -> jax.Array:
    """``0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N)``."""
    return _window(np.blackman(length + periodic), length, dtype)


@_counted("aten.bartlett_window.default", "aten.bartlett_window.periodic")
def bartlett_window(length: int, periodic: bool = True, *, dtype: DType | None = None) -> jax.Array:
    """A triangle with zeros at both ends."""
    return _window(np.bartlett(length + periodic), length, dtype)


@_counted("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")
def kaiser_window(
    length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None
) -> jax.Array:
    """``I0(beta sqrt(1 - (2 n / N - 1)^2)) / I0(beta)``."""
    return _window(np.kaiser(length + periodic, beta), length, dtype)
