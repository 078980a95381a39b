"""Reductions as torch defines them, shaped so that XLA:CPU runs them right and fast.

XLA:CPU has one good loop for reductions: over the last axis, where that is long. All others are
brought to elementwise work on slices, which it runs with vector instructions on all cores: a
leading or middle axis is combined in groups, pair by pair, a short last axis first into one vector.
That is also the order of torch's own sums, which keeps their digits
(``aten/src/ATen/native/cpu/SumKernel.cpp``). XLA's pass that would make windows of these
reductions is left out (``emulator/plans/executable_cache.py``).

Large reductions are compiled apart: XLA would fuse what makes the operand into every slice, and
the result's readers behind it.

XLA:CPU's own ``min`` and ``max`` of floats drop NaN on some code paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from emulator.kernels.slices import GROUP, Combine, fold_middle, pairwise
from emulator.kernels.unfused import compile_apart, in_memory
from emulator.ops._gradient import with_gradient
from emulator.ops._reshape import reshaped

_LANES = 16
"""Elements that a short last axis is folded to: a vector of float32."""
_SHORT = 128
"""Length of a last axis from which XLA:CPU's own loop is vectorized (measured)."""
_ROW = 512
"""Elements of a last axis that are summed in one loop of vectors; more of them lose digits."""
_LARGE = 16384
"""Elements from which a reduction is compiled apart: fewer cost less than a call."""

Reduce = Callable[[jax.Array], jax.Array]
P = ParamSpec("P")
R = TypeVar("R")


def normalize_axis(axis: int, ndim: int) -> int:
    """A non-negative axis; a 0-d array counts as one axis, as in torch."""
    return axis % max(ndim, 1)


def normalize_axes(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Sorted, non-negative reduction axes; ``None`` and ``()`` mean all.

    Args:
        dim: torch's ``dim`` argument.
        ndim: Number of dimensions of the array.

    Returns:
        The axes.

    Example:
        >>> normalize_axes((-1, 0), 3)
        (0, 2)
    """
    if ndim == 0:
        return ()
    if dim is None or dim == ():
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(sorted(d % ndim for d in dims))


def kept_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of a reduction's result under ``keepdim=True``."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def shaped(y: jax.Array, x: jax.Array, axes: tuple[int, ...], keepdim: bool) -> jax.Array:
    """The result of a reduction, with axes of length 1 in the place of those that are gone.

    Args:
        y: The result, without the axes.
        x: What was reduced.
        axes: Over what.
        keepdim: False to leave the result as it is.
    """
    return reshaped(y, kept_shape(x.shape, axes)) if keepdim else y


def _fold_last(x: jax.Array, combine: Combine, plain: Reduce) -> jax.Array:
    """``(L, N)`` combined to ``(L,)`` for a short N: vectors first, then what they hold."""
    count = x.shape[1] // _LANES
    whole = count * _LANES
    parts = [lax.slice_in_dim(x, i, i + _LANES, axis=1) for i in range(0, whole, _LANES)]
    # Else XLA makes one loop of both, without vector instructions.
    total = plain(in_memory(pairwise(parts, combine)))
    if whole == x.shape[1]:
        return total
    return combine(total, plain(lax.slice_in_dim(x, whole, x.shape[1], axis=1)))


def _reduce_last(x: jax.Array, combine: Combine, plain: Reduce, longest: int) -> jax.Array:
    """``(L, N)`` combined to ``(L,)``; at most ``longest`` elements in one loop."""
    lead, size = x.shape
    if 2 * _LANES <= size < _SHORT:
        return _fold_last(x, combine, plain)
    if size <= longest:
        return plain(x)
    rows = -(-size // longest)
    length = next((n for n in range(longest, longest // 2, -1) if size % n == 0), size // rows)
    whole = size - size % length
    main = lax.slice_in_dim(x, 0, whole, axis=1).reshape(lead * (whole // length), length)
    # Else XLA makes one reduction of both, whose one loop loses digits.
    parts = in_memory(plain(main)).reshape(lead, -1)
    total = _reduce_last(parts, combine, plain, longest)
    if whole == size:
        return total
    return combine(total, plain(lax.slice_in_dim(x, whole, size, axis=1)))


def _reduce_over(
    x: jax.Array, axes: tuple[int, ...], combine: Combine, plain: Reduce, longest: int
) -> jax.Array:
    """Reduce sorted axes, each run of neighbours as one axis, the innermost first."""
    if x.size == 0 or not axes:
        return _plainly(x, axes, plain)
    shape = x.shape
    out = tuple(n for a, n in enumerate(shape) if a not in axes)
    axes = tuple(a for a in axes if shape[a] != 1)  # an axis of length 1 parts no others
    while axes:
        last = first = axes[-1]
        while first - 1 in axes or (first > 0 and x.shape[first - 1] == 1):
            first -= 1
        lead, trail = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
        size = math.prod(x.shape[first : last + 1])
        rest = (*x.shape[:first], *(1,) * (last + 1 - first), *x.shape[last + 1 :])
        if trail == 1:
            y = _reduce_last(x.reshape(lead, size), combine, plain, longest)
        else:
            y = fold_middle(x.reshape(lead, size, trail), combine)
        x = y.reshape(rest)
        axes = tuple(a for a in axes if a < first)
    return x.reshape(out)


def _plainly(x: jax.Array, axes: tuple[int, ...], plain: Reduce) -> jax.Array:
    """Reduce in one step what holds nothing, or along nothing."""
    order = [a for a in range(x.ndim) if a not in axes] + list(axes)
    out = tuple(x.shape[a] for a in order[: x.ndim - len(axes)])
    count = math.prod(x.shape[a] for a in axes)
    return plain(lax.transpose(x, order).reshape(math.prod(out), count)).reshape(out)


def sum_rows(x: jax.Array) -> jax.Array:
    """Sum of the rows of a matrix.

    Args:
        x: Matrix ``(R, C)``.

    Returns:
        Vector ``(C,)``.

    Example:
        >>> import jax.numpy as jnp
        >>> [float(v) for v in sum_rows(jnp.ones((1000, 2)))]
        [1000.0, 1000.0]
    """
    return reduce_sum(x, (0,))


def _sum_backward(axes: tuple[int, ...], shape: tuple[int, ...], g: jax.Array) -> tuple[jax.Array]:
    return (jnp.broadcast_to(g.reshape(kept_shape(shape, axes)), shape),)


@with_gradient(_sum_backward, saves=lambda _y, x, *_: x.shape, static=(1,))
def _sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return _call("sum", x, axes)


def _plain_sum(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, axis=1, dtype=rows.dtype)


def _sum_here(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    dtype = x.dtype
    wide = x.astype(jnp.float32) if dtype in (jnp.bfloat16, jnp.float16) else x
    return _reduce_over(wide, axes, lax.add, _plain_sum, _ROW).astype(dtype)


@cache
def _alone(kind: str, axes: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """A reduction as a function of its operand alone, the same object for the same arguments."""
    reduce = _KINDS[kind]
    return lambda x: reduce(x, axes)


def _call(kind: str, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return large_part(_alone(kind, axes), x)


def large_part(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of reductions; compiled apart where one of its arguments is large.

    Args:
        fn: A pure function of arrays, the same object at every call. It reduces by
            :func:`sum_within` and :func:`peak_within`.
        args, kwargs: Its arguments.

    Returns:
        What it returns.
    """
    if max(np.size(a) for a in args) < _LARGE:  # pyright: ignore[reportArgumentType]  # P has no types
        return fn(*args, **kwargs)
    return compile_apart(fn, *args, **kwargs)


def sum_within(x: jax.Array, axis: int, longest: int = 0) -> jax.Array:
    """Sum along an axis, which stays with length 1, in a part that is compiled apart.

    Args:
        x: Numbers of a type that sums are made in. XLA may fuse what makes them into the sum.
        axis: The axis.
        longest: Elements to sum in one loop, if not as usual.

    Returns:
        The sums. They have no gradient of their own.
    """
    axis = axis % x.ndim
    y = _reduce_over(x, (axis,), lax.add, _plain_sum, longest or _ROW)
    return jnp.expand_dims(y, axis)


def column_sums_within(make: Combine | Reduce, *rows: jax.Array) -> jax.Array:
    """Sum of rows that are made of other rows, in a part that is compiled apart.

    The first pass adds blocks of neighbouring rows and makes what it adds: by every sixteenth row,
    as :func:`sum_within` goes, XLA:CPU makes it at half the speed.

    Args:
        make: Elementwise function of as many arrays ``(r, C)`` as there are ``rows``.
        rows: Arrays ``(R, C)``.

    Returns:
        The sum ``(C,)``. It has no gradient of its own.
    """
    size = rows[0].shape[0]
    length = size // GROUP
    whole = length * GROUP
    sums: list[jax.Array] = []
    if whole:
        blocks = [
            make(*(lax.slice_in_dim(x, at, at + length) for x in rows))
            for at in range(0, whole, length)
        ]
        sums.append(in_memory(pairwise(blocks, lax.add)))
    if whole < size or not size:
        sums.append(make(*(lax.slice_in_dim(x, whole, size) for x in rows)))
    return pairwise([_reduce_over(y, (0,), lax.add, _plain_sum, _ROW) for y in sums], lax.add)


def peak_within(x: jax.Array, axis: int) -> jax.Array:
    """:func:`peak` in a part that is compiled apart."""
    return jnp.expand_dims(_peak_here(x, (axis % x.ndim,)), axis)


def reduce_sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Sum over axes in the array's own dtype; half types are summed in float32.

    Args:
        x: Any array of numbers.
        axes: Sorted, non-negative axes.

    Returns:
        The sum without the axes.
    """
    return _sum(x, axes)


def reduce_kept(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """:func:`reduce_sum` with axes of length 1 in the place of those summed over."""
    return reshaped(reduce_sum(x, axes), kept_shape(x.shape, axes))


def reduce_all(x: jax.Array) -> jax.Array:
    """:func:`reduce_sum` over all axes."""
    return reduce_sum(x, tuple(range(x.ndim)))


def lowest(dtype: Any) -> np.ndarray:
    """The smallest value of a dtype (``-inf`` for floats): the start of a maximum."""
    if dtype == np.bool_:
        return np.asarray(False)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf, dtype)
    return np.asarray(jnp.iinfo(dtype).min, dtype)


def highest(dtype: Any) -> np.ndarray:
    """The largest value of a dtype (``inf`` for floats): the start of a minimum."""
    if dtype == np.bool_:
        return np.asarray(True)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(np.inf, dtype)
    return np.asarray(jnp.iinfo(dtype).max, dtype)


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.select((a > b) | (a != a), a, b)


def _smaller(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.select((a < b) | (a != a), a, b)


def _row_extreme(x: jax.Array, *, largest: bool) -> jax.Array:
    """Extremes of rows; NaN wins."""
    start = lowest(x.dtype) if largest else highest(x.dtype)
    top = lax.reduce(x, start, lax.max if largest else lax.min, (1,))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return top
    lost = lax.reduce((x != x).astype(np.int32), np.int32(0), lax.max, (1,))
    return jnp.where(lost != 0, np.asarray(np.nan, x.dtype), top)


def reduce_max(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Maximum over axes; NaN wins. Not differentiable: callers define the gradient."""
    return _call("max", x, axes)


def reduce_min(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Minimum over axes; NaN wins. Not differentiable: callers define the gradient."""
    return _call("min", x, axes)


def peak(x: jax.Array, axis: int) -> jax.Array:
    """Maximum along an axis, which stays with length 1, as what a softmax subtracts.

    NaN may be lost: it comes back in the exponential of what it is subtracted from.
    """
    axis = axis % x.ndim
    return jnp.expand_dims(_call("peak", lax.stop_gradient(x), (axis,)), axis)


def _peak_here(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    def plain(rows: jax.Array) -> jax.Array:
        return lax.reduce(rows, lowest(rows.dtype), lax.max, (1,))

    return _reduce_over(x, axes, lax.max, plain, x.size + 1)


def _max_here(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return _reduce_over(x, axes, _larger, partial(_row_extreme, largest=True), x.size + 1)


def _min_here(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return _reduce_over(x, axes, _smaller, partial(_row_extreme, largest=False), x.size + 1)


_KINDS: dict[str, Callable[[jax.Array, tuple[int, ...]], jax.Array]] = {
    "sum": _sum_here,
    "max": _max_here,
    "min": _min_here,
    "peak": _peak_here,
}


def first_match(hit: jax.Array, axis: int) -> jax.Array:
    """Index of the first true entry along an axis, as int64."""
    index = lax.broadcasted_iota(jnp.int32, hit.shape, axis)
    places = jnp.where(hit, index, np.int32(hit.shape[axis]))
    return reduce_min(places, (axis,)).astype(jnp.int64)


def extreme_index(x: jax.Array, axis: int, *, largest: bool) -> tuple[jax.Array, jax.Array]:
    """The extreme values along an axis and the index of the first of them.

    Two plain reductions: XLA:CPU's own ``argmax`` is an order of magnitude slower.

    Args:
        x: An array of at least one dimension; the axis is not empty.
        axis: Non-negative axis.
        largest: Maximum rather than minimum.

    Returns:
        Values and int64 indices, both without the axis. The first NaN wins.
    """
    value = (reduce_max if largest else reduce_min)(x, (axis,))
    spread = jnp.expand_dims(value, axis)
    return value, first_match((x == spread) | (x != x), axis)
