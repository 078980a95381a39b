"""Products of bfloat16 in the one form for which XLA:CPU has a kernel from the start to the end.

XLA asks twice whether its kernel takes a product: before it lays arrays out, to leave the factors
bfloat16 if so, and after. In between it exchanges the factors of a product that is transposed, and
folds transposes of the factors into the product. A product that then is no longer of that form
stays bfloat16 without a kernel, and the plan fails when it runs (``DotThunk ... BF16 x BF16 =
F32``). One that is not of that form at the first question is computed in float32: it is right, and
two to four times as slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import compute_dtype, product_precision

if TYPE_CHECKING:
    from emulator.kernels.products import Spec

__all__ = ["narrow_product"]


def narrow_product(spec: Spec, a: jax.Array, b: jax.Array) -> jax.Array:
    """A contraction as rows times a matrix, or a batch of those.

    The left factor has the summed axes last, and nothing is left for XLA to fold or to exchange:
    barriers are gone only after that.

    Args:
        spec: The contraction.
        a, b: Its operands, of a 16-bit type.

    Returns:
        The product in float32, its axes as ``spec.out`` has them.
    """
    sizes = dict(zip(spec.left + spec.right, a.shape + b.shape, strict=True))
    lead = [sizes[c] for c in spec.batch]
    rows, columns, summed = (
        math.prod(sizes[c] for c in axes) for axes in (spec.rows, spec.columns, spec.summed)
    )
    a = _laid_out(a, spec.left, spec.batch + spec.rows + spec.summed)
    a = lax.optimization_barrier(a.reshape(*lead, rows, summed))
    # XLA's kernel reads a right factor of either order.
    turned = spec.right == spec.batch + spec.columns + spec.summed
    if not turned:
        b = _laid_out(b, spec.right, spec.batch + spec.summed + spec.columns)
    b = b.reshape(*lead, *((columns, summed) if turned else (summed, columns)))
    n = len(lead)
    y = lax.dot_general(
        a,
        b,
        (((n + 1,), (n + turned,)), (tuple(range(n)), tuple(range(n)))),
        precision=product_precision(a.dtype),
        preferred_element_type=compute_dtype(a.dtype),
    )
    order = spec.batch + spec.rows + spec.columns
    y = lax.optimization_barrier(y).reshape([sizes[c] for c in order])
    return y if order == spec.out else jnp.transpose(y, _places(order, spec.out))


def _laid_out(array: jax.Array, axes: str, order: str) -> jax.Array:
    """An array whose axes lie in an order; flat where they had to be moved.

    XLA lays a transposed array out as it lay before, behind a barrier as well. A flat one has but
    one layout.
    """
    if axes == order:
        return array
    return lax.optimization_barrier(jnp.transpose(array, _places(axes, order)).reshape(-1))


def _places(axes: str, order: str) -> Sequence[int]:
    return [axes.index(c) for c in order]
