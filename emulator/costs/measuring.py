"""Best rates of this machine, measured: of products by jax, of memory by copies.

The one file of this room that loads jax when it is imported. Nothing is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from emulator.costs.roofline import Machine
from emulator.costs.timing import (
    COPIED,
    SHAPES,
    jax_product_rate,
    memory_rates,
    processors,
    shortest,
)
from emulator.dtypes import TO_NUMPY
from emulator.kernels.problems import Product, applicable
from emulator.kernels.products import CANDIDATES, Spec
from emulator.processor import processor
from emulator.start import first_device
from pef_schema.program import DType

_JAX, _JNP = cast("Any", jax), cast("Any", jnp)
"""jax types what is used here in part."""
_FORMS = ("mk,kn->mn", "mk,nk->mn")
"""A product of matrices as they lie, and one with the second turned, as linear layers have it."""


def measured_machine(dtypes: Iterable[DType], seconds: float = 0.1) -> Machine:
    """Measure this machine, with the processors that this process may use.

    Args:
        dtypes: Types of products.
        seconds: How long to try each product and each copy.

    Returns:
        The best rates: of each type, of all shapes and of all ways that the device has; of memory,
        and of the caches that are faster than it.
    """
    device = first_device()
    rates = tuple((d, _product_rate(d, seconds)) for d in sorted(set(dtypes)))
    if device.platform == "cpu":
        name = f"{processor().name}, {processors()} processors"
        bandwidth, caches = memory_rates(seconds)
    else:
        name, bandwidth, caches = str(device.device_kind), _device_rate(seconds), ()
    return Machine(
        name=name,
        rates=rates,
        bandwidth=bandwidth,
        caches=caches,
    )


def _product_rate(dtype: DType, seconds: float) -> float:
    """The best rate of a type, by XLA and by each of the device's own ways."""
    kind = TO_NUMPY[dtype]
    best = 0.0
    with _JAX.enable_x64(True):
        for shape in SHAPES:
            if dtype.is_floating:
                best = max(best, jax_product_rate(shape, str(kind), seconds))
            for form in _FORMS:
                best = max([best, *_rates_of(form, kind, shape, seconds)])
    return best


def _rates_of(
    form: str, kind: np.dtype[Any], shape: tuple[int, int, int], seconds: float
) -> Iterator[float]:
    """The rates of one product by the device's own ways."""
    m, k, n = shape
    turned = form == _FORMS[1]
    rng = np.random.default_rng(0)
    sizes = ((m, k), (n, k) if turned else (k, n))
    operands = [_JAX.device_put((rng.standard_normal(s) * 3).astype(kind)) for s in sizes]
    problem = Product(dtype=str(kind), turned_a=False, turned_b=turned, batch=1, m=m, k=k, n=n)
    for candidate in applicable(problem, CANDIDATES):
        product = _JAX.jit(partial(candidate.run, Spec.of(form), dtype=kind))
        least = shortest(lambda run=product: run(*operands).block_until_ready(), seconds)
        yield 2.0 * m * k * n / least


def _device_rate(seconds: float) -> float:
    """Bytes a second, read and written ones, of a copy in the memory of jax's device."""
    source = _JNP.ones(COPIED, "float32")
    copy = _JAX.jit(operator.neg)
    return 2.0 * source.nbytes / shortest(lambda: copy(source).block_until_ready(), seconds)
