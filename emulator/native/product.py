"""Products of matrices by oneDNN, with the bias and the rounding of a linear layer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.native.library import native_library

_TARGET = "emulator_product"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCall:
    """A call of the kernels for products.

    Args:
        batch: How many products.
        m, k, n: Rows of the left factor, summed elements, columns of the right factor.
        turned_a, turned_b: Whether a factor lies transposed: ``(k, m)`` and ``(n, k)``.
        biased: Whether a bias ``(n,)`` is added.
        narrow: Whether factors and bias are bfloat16; else float32.
        rounded: Whether the result is rounded to bfloat16; else float32.
        threads: Among how many threads it is divided.
    """

    batch: int
    m: int
    k: int
    n: int
    turned_a: bool = False
    turned_b: bool = False
    biased: bool = False
    narrow: bool = False
    rounded: bool = False
    threads: int

    def numbers(self) -> dict[str, int]:
        """What the native functions are given, in the order of their arguments."""
        return {
            "turned_a": int(self.turned_a),
            "turned_b": int(self.turned_b),
            "biased": int(self.biased),
            "narrow": int(self.narrow),
            "rounded": int(self.rounded),
            "threads": self.threads,
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, rows, summed elements, columns."""
        return (self.batch, self.m, self.k, self.n)


@functools.lru_cache(maxsize=1024)
def _scratch(call: ProductCall) -> int | None:
    library = native_library()
    if library is None:
        return None
    return library.scratch("product_scratch", call.shape, *call.numbers().values())


def has_product(call: ProductCall) -> bool:
    """Whether oneDNN has a kernel for a call: generated code for this processor.

    Args:
        call: The call.

    Returns:
        False without native kernels, too.
    """
    return native_library() is not None and _scratch(call) is not None


def call_product(
    call: ProductCall, a: jax.Array, b: jax.Array, bias: jax.Array | None, shape: Sequence[int]
) -> jax.Array:
    """Compute products of matrices, accumulated in float32.

    Args:
        call: Which.
        a, b: The factors; only the number of their elements is looked at.
        bias: What is added to each row, where ``call`` has one.
        shape: Of the result, whose elements keep their order. XLA:CPU reshapes bfloat16 by way of
            float32, which is a pass over the array.

    Returns:
        The elements of ``(batch, m, n)`` in ``shape``.

    Raises:
        NotImplementedError: If :func:`has_product` says no.
    """
    scratch = _scratch(call) if native_library() is not None else None
    if scratch is None:
        raise NotImplementedError(f"no native kernel computes {call}")
    dtype = jnp.bfloat16 if call.rounded else jnp.float32
    results = (
        jax.ShapeDtypeStruct(shape, dtype),
        jax.ShapeDtypeStruct((scratch,), jnp.uint8),
    )
    numbers = {**call.numbers(), "scratch": scratch}
    attributes: dict[str, Any] = {name: np.int64(n) for name, n in numbers.items()}
    operands = (a, b) if bias is None else (a, b, bias)
    sizes = np.asarray(call.shape, np.int64)
    result, _ = jax.ffi.ffi_call(_TARGET, results)(*operands, shape=sizes, **attributes)
    return result
