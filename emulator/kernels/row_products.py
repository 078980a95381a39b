"""Products in the one form for which XLA:CPU has its fast kernel: rows times a matrix.

XLA asks twice whether that kernel takes a product: before it lays arrays out, and after. In between
it exchanges the factors of a product that is transposed, and folds transposes of the factors into
the product, which then is no longer of that form.

* bfloat16 factors stay as they are if the first answer is yes. If the second one is no, there is no
  kernel for them, and the plan fails when it runs (``DotThunk ... BF16 x BF16 = F32``). If the
  first one is no, XLA widens them to float32, which is right, and two to four times as slow.
* float32 products of another form go to Eigen, which is up to twice as slow for small ones. For
  large ones it is as fast, and needs no copy of a transposed factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import compute_dtype, product_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """An einsum of two operands, taken apart.

    Args:
        left, right, out: Axes of the operands and of the result.
        batch, summed: Axes that both operands have, and the result has or has not.
        rows, columns: Axes of the left or of the right operand alone.
    """

    left: str
    right: str
    out: str
    batch: str
    summed: str
    rows: str
    columns: str

    @classmethod
    def of(cls, spec: str) -> Spec:
        """Take an equation apart."""
        inputs, out = spec.split("->")
        left, right = inputs.split(",")
        batch = "".join(c for c in left if c in right and c in out)
        summed = "".join(c for c in left if c in right and c not in out)
        rows = "".join(c for c in left if c not in right)
        columns = "".join(c for c in right if c not in left)
        return cls(
            left=left, right=right, out=out, batch=batch, summed=summed, rows=rows, columns=columns
        )


def row_product(spec: Spec, a: jax.Array, b: jax.Array) -> jax.Array:
    """A contraction as rows times a matrix, or a batch of those.

    The left factor has the summed axes last. XLA removes barriers only after the passes that fold
    and exchange. The arrays behind them have one axis: XLA may give an array of several axes
    another layout, fold a transpose into it, and with a batch abort the process. ``jax.vmap`` of
    one factor alone undoes that.

    Args:
        spec: The contraction.
        a, b: Its operands, of one dtype.

    Returns:
        The product, float32 for 16-bit types, its axes as ``spec.out`` has them.

    Example:
        >>> from emulator.kernels.row_products import Spec
        >>> ones = jnp.ones((3, 2), jnp.bfloat16)
        >>> row_product(Spec.of("ni,no->io"), ones, ones).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    sizes = dict(zip(spec.left + spec.right, a.shape + b.shape, strict=True))
    lead = [sizes[c] for c in spec.batch]
    rows, columns, summed = (
        math.prod(sizes[c] for c in axes) for axes in (spec.rows, spec.columns, spec.summed)
    )
    a = _flat(_moved(a, spec.left, spec.batch + spec.rows + spec.summed))
    # XLA's kernel reads a right factor of either order.
    turned = spec.right == spec.batch + spec.columns + spec.summed
    order = spec.batch + spec.summed + spec.columns
    if not turned and spec.right != order:
        b = _flat(_moved(b, spec.right, order))
    n = len(lead)
    y = lax.dot_general(
        a.reshape(*lead, rows, summed),
        b.reshape(*lead, *((columns, summed) if turned else (summed, columns))),
        (((n + 1,), (n + turned,)), (tuple(range(n)), tuple(range(n)))),
        precision=product_precision(a.dtype),
        preferred_element_type=compute_dtype(a.dtype),
    )
    order = spec.batch + spec.rows + spec.columns
    return _moved(_flat(y).reshape([sizes[c] for c in order]), order, spec.out)


def with_rows(spec: Spec, a: jax.Array) -> tuple[str, jax.Array]:
    """The left factor of a contraction with the summed axes last, copied if it lies otherwise.

    Args:
        spec: The contraction.
        a: The factor.

    Returns:
        Its axes in their order, and the factor.

    Example:
        >>> from emulator.kernels.row_products import Spec
        >>> axes, factor = with_rows(Spec.of("ni,no->io"), jnp.ones((3, 2)))
        >>> axes, factor.shape
        ('in', (2, 3))
    """
    if spec.left.endswith(spec.summed):
        return spec.left, a
    order = spec.batch + spec.rows + spec.summed
    moved = _moved(a, spec.left, order)
    return order, _flat(moved).reshape(moved.shape)


def _flat(array: jax.Array) -> jax.Array:
    return lax.optimization_barrier(array.reshape(-1))


def _moved(array: jax.Array, axes: str, order: str) -> jax.Array:
    """An array whose axes come in another order."""
    return array if axes == order else jnp.transpose(array, [axes.index(c) for c in order])
