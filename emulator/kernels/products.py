"""The matrix product behind all contractions: candidates, and the one that is taken.

XLA:CPU has a fast kernel for one form of products: rows times a matrix. It asks twice whether that
kernel takes a product: before it lays arrays out, and after. In between it exchanges the factors of
a product that is transposed, and folds transposes of the factors into the product, which then is no
longer of that form.

* bfloat16 factors stay as they are if the first answer is yes. If the second one is no, there is no
  kernel for them, and the plan fails when it runs (``DotThunk ... BF16 x BF16 = F32``). If the
  first one is no, XLA widens them to float32, which is right, and two to four times as slow.
* float32 products of another form go to Eigen, which is up to twice as slow for small ones. For
  large ones it is as fast, and needs no copy of a transposed factor.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import compute_dtype, product_precision, widen
from emulator.kernels.problems import Candidate, Product, choose
from emulator.kernels.target import Target, native_kernels, present_target
from emulator.native.library import shares_of
from emulator.native.product import ProductCall, call_product, has_product
from emulator.processor import processor

_NATIVE_TYPES = {
    "float32": frozenset({"avx2"}),
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16"}),
}
"""Extensions of which a processor must have one for native products of a type to pay."""
_LEAST_FOR_NATIVE = {"float32": 200_000, "bfloat16": 10_000_000}
"""Operations from which a product is faster by a native call: XLA's kernel for small bfloat16
products is good."""
_FEW_COLUMNS, _MOST_COPIED, _MOST_PRODUCTS = 8, 1 << 18, 16_000_000
"""A left factor is copied from so many columns of the right one on, up to so many elements and
products: a copy takes longer than a product with a few columns, and large products of either
library take as long. Measured from (96, 64) to (16384, 256) with 1 to 8,192 columns on an Intel
Xeon (AMX, 2 cores)."""


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


def _by_xla(
    spec: Spec,
    a: jax.Array,
    b: jax.Array,
    dtype: Any = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """``lax.dot_general``, of factors that lie as XLA's kernels for this target want them."""
    target = present_target()
    if a.dtype == jnp.bfloat16 and target is Target.PROCESSOR:
        return _finished(row_product(spec, a, b), dtype, bias)
    if a.dtype == jnp.bfloat16 and target is Target.CHIPS:
        # The form of rows cannot be divided, and others may have no kernel for bfloat16.
        a, b = widen(a), widen(b)
    left, right = spec.left, spec.right
    if target is Target.PROCESSOR and _gains_by_rows(spec, a, b):
        left, a = with_rows(spec, a)
    dims = (
        (tuple(left.index(c) for c in spec.summed), tuple(right.index(c) for c in spec.summed)),
        (tuple(left.index(c) for c in spec.batch), tuple(right.index(c) for c in spec.batch)),
    )
    y = lax.dot_general(
        a,
        b,
        dims,
        precision=product_precision(a.dtype),
        preferred_element_type=compute_dtype(a.dtype),
    )
    order = spec.batch + spec.rows + spec.columns
    y = y if order == spec.out else jnp.transpose(y, [order.index(c) for c in spec.out])
    return _finished(y, dtype, bias)


def _gains_by_rows(spec: Spec, a: jax.Array, b: jax.Array) -> bool:
    """Whether a product is faster with its left factor copied, so that rows lie side by side."""
    columns = math.prod(
        n for axis, n in zip(spec.right, b.shape, strict=True) if axis in spec.columns
    )
    if a.dtype not in (jnp.float32, jnp.float16) or a.ndim != 2 or columns < _FEW_COLUMNS:
        return False
    return a.size <= _MOST_COPIED and a.size * columns <= _MOST_PRODUCTS


def _finished(y: jax.Array, dtype: Any, bias: jax.Array | None) -> jax.Array:
    """A product with its bias, rounded."""
    y = y if bias is None else y + bias.astype(y.dtype)
    return y if dtype is None else y.astype(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrices:
    """A contraction that is a product of matrices as they lie, or of batches of them.

    Args:
        problem: The product.
        exchanged: Whether its first operand is the contraction's second.
        lead: Sizes of the batch's axes.
    """

    problem: Product
    exchanged: bool
    lead: tuple[int, ...]


def _matrices(spec: Spec, a: jax.Array, b: jax.Array) -> _Matrices | None:
    """How to compute a contraction from matrices without moving one; None if that is impossible."""
    turned_a = {spec.batch + spec.rows + spec.summed: False,
                spec.batch + spec.summed + spec.rows: True}.get(spec.left)  # fmt: skip
    turned_b = {spec.batch + spec.summed + spec.columns: False,
                spec.batch + spec.columns + spec.summed: True}.get(spec.right)  # fmt: skip
    straight = spec.out == spec.batch + spec.rows + spec.columns
    if turned_a is None or turned_b is None:
        return None
    if not straight and spec.out != spec.batch + spec.columns + spec.rows:
        return None
    sizes = dict(zip(spec.left + spec.right, a.shape + b.shape, strict=True))
    lead = tuple(sizes[c] for c in spec.batch)
    m, k, n = (math.prod(sizes[c] for c in axes) for axes in (spec.rows, spec.summed, spec.columns))
    if not straight:
        m, n = n, m
        turned_a, turned_b = not turned_b, not turned_a
    problem = Product(
        dtype=str(a.dtype),
        turned_a=turned_a,
        turned_b=turned_b,
        batch=math.prod(lead),
        m=m,
        k=k,
        n=n,
    )
    return _Matrices(problem=problem, exchanged=not straight, lead=lead)


def is_of_matrices(spec: Spec, a: Any, b: Any) -> bool:
    """Whether a contraction is a product of matrices as they lie, or of batches of them.

    Args:
        spec: The contraction.
        a, b: Its operands; only shapes and dtypes are looked at.

    Example:
        >>> import jax.numpy as jnp
        >>> is_of_matrices(Spec.of("ij,kj->ik"), jnp.ones((2, 3)), jnp.ones((4, 3)))
        True
    """
    return _matrices(spec, a, b) is not None


def _call(p: Product, *, biased: bool, rounded: bool) -> ProductCall:
    return ProductCall(
        batch=p.batch,
        m=p.m,
        k=p.k,
        n=p.n,
        turned_a=p.turned_a,
        turned_b=p.turned_b,
        biased=biased,
        narrow=p.dtype == "bfloat16",
        rounded=rounded,
        threads=shares_of(p.operations),
    )


def _by_native(
    spec: Spec,
    a: jax.Array,
    b: jax.Array,
    dtype: Any = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """oneDNN's, which adds the bias and rounds as it stores: passes less over the result."""
    matrices = _matrices(spec, a, b)
    if matrices is None:
        raise ValueError(f"{spec} is not a matrix product")
    first, second = (b, a) if matrices.exchanged else (a, b)
    kind = jnp.dtype(compute_dtype(a.dtype) if dtype is None else dtype)
    rounded = a.dtype == kind == jnp.bfloat16
    call = _call(matrices.problem, biased=bias is not None, rounded=rounded)
    sizes = dict(zip(spec.left + spec.right, a.shape + b.shape, strict=True))
    shape = [sizes[c] for c in spec.out]
    return call_product(call, first, second, bias, shape).astype(kind)


def _native(p: Product) -> bool:
    if p.dtype not in _NATIVE_TYPES or min(p.batch, p.m, p.k, p.n) == 0:
        return False
    if p.operations < _LEAST_FOR_NATIVE[p.dtype] or native_kernels() is None:
        return False
    if not _NATIVE_TYPES[p.dtype] & set(processor().isa):
        return False
    roundings = (False, True) if p.dtype == "bfloat16" else (False,)
    forms = itertools.product((False, True), roundings)
    return all(has_product(_call(p, biased=biased, rounded=rounded)) for biased, rounded in forms)


CANDIDATES: tuple[Candidate[Product], ...] = (
    Candidate(name="native", applies=_native, run=_by_native),
    Candidate(name="xla", applies=lambda p: True, run=_by_xla),
)
"""The best first."""


def product(
    spec: str,
    a: jax.Array,
    b: jax.Array,
    dtype: Any = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Product of two arrays summed over their common axes, narrow types accumulated in float32.

    Args:
        spec: Axes as in einsum, e.g. ``"ni,oi->no"``. Every axis of an operand must occur
            in the other operand or in the result.
        a, b: Operands of one dtype.
        dtype: Of the result, to which it is rounded once: theirs, or None.
        bias: Added along the result's last axis before that; of the operands' dtype.

    Returns:
        The product; where no dtype is given, float32 for bfloat16 and float16 operands, else of
        their dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> product("ni,oi->no", jnp.ones((2, 3)), jnp.ones((4, 3))).tolist()[0]
        [3.0, 3.0, 3.0, 3.0]
    """
    axes = Spec.of(spec)
    matrices = _matrices(axes, a, b)
    if matrices is None:
        return _by_xla(axes, a, b, dtype, bias)
    return choose(matrices.problem, CANDIDATES).run(axes, a, b, dtype, bias)


def plain_product(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """The product by XLA's own kernels: what a loop's body takes.

    Between two products of a loop lie other, serial steps.

    Args:
        spec, a, b: As :func:`product` has them.

    Returns:
        The same values, within what the order of a float32 sum makes of them.

    Example:
        >>> import jax.numpy as jnp
        >>> plain_product("ni,oi->no", jnp.ones((2, 3)), jnp.ones((4, 3))).tolist()[0]
        [3.0, 3.0, 3.0, 3.0]
    """
    return _by_xla(Spec.of(spec), a, b)


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
        >>> from emulator.kernels.products import Spec
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
        >>> from emulator.kernels.products import Spec
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
