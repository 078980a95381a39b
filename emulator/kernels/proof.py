"""Whether jaxlib's oneDNN is there and right: it is tried at its first use in a process."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.handler_errors import raise_error_of_handler
from emulator.kernels.onednn import Axes, Slide, convolution, matmul
from emulator.kernels.unkept import kept_nowhere
from emulator.processor import processor

__all__ = ["ONEDNN_VARIABLE", "Call", "has_generated_kernels", "onednn_is_good"]

ONEDNN_VARIABLE = "EMULATOR_ONEDNN"
"""``0`` in the environment leaves oneDNN out."""

_LOG = logging.getLogger(__name__)

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


class Call(Enum):
    """What oneDNN is asked to compute."""

    PRODUCT = "products"
    CONVOLUTION = "convolutions"


_WANTED: Mapping[Call, frozenset[str]] = MappingProxyType(
    {Call.PRODUCT: _AVX2 | _AVX512, Call.CONVOLUTION: _AVX2}
)
"""What a processor must have for each call.

With less oneDNN falls back to products that it divides among threads of its own accord
(``gemm:jit``). Under XLA's executor such a call may wait forever for its end; without AVX-512 its
products of bfloat16 end the process. With AVX2 it has kernels for convolutions (``brg_conv``,
``brgconv_1x1``, ``brdgmm_dw``), but for no product.
"""

_CEILING_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""oneDNN's own: it goes by a lesser processor than the one that is there."""


def _run(compute: Callable[..., jax.Array], *arrays: jax.Array | np.ndarray) -> np.ndarray:
    """Compile for the CPU and call; outside of whatever is being traced just now."""
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in arrays]
    jitted: Any = jax.jit(compute)
    with kept_nowhere():
        compiled = jitted.lower(*shapes).compile()
    return np.asarray(compiled(*arrays))


def _products(dtype: str) -> float:
    rows = np.arange(24, dtype=np.float32).reshape(4, 6) - 11
    columns = np.arange(30, dtype=np.float32).reshape(6, 5) % 7 - 3
    bias = np.arange(5, dtype=np.float32)
    turned = np.ascontiguousarray(columns.T)

    def compute(a: jax.Array, b: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        return matmul(a, b, turned_b=True, dtype=np.float32, bias=bias)

    off = 0.0
    for added in ((), (bias,)):
        got = _run(compute, *(a.astype(jnp.dtype(dtype)) for a in (rows, turned, *added)))
        off = max(off, float(np.max(np.abs(got - sum(added, rows @ columns)))))
    return off


def _convolutions() -> float:
    """A window of two over one image of two channels, against the four products by hand."""
    x = (np.arange(32, dtype=np.float32) % 5 - 2).reshape(1, 4, 4, 2)
    w = (np.arange(24, dtype=np.float32) % 7 - 3).reshape(3, 2, 2, 2)
    slide = Slide(
        x=Axes(outer=0, inner=3, spatial=(1, 2)),
        w=Axes(outer=1, inner=0, spatial=(2, 3)),
        y=Axes(outer=0, inner=3, spatial=(1, 2)),
        stride=(1, 1),
        dilation=(1, 1),
        low=(0, 0),
        high=(0, 0),
        groups=1,
        shape=(1, 3, 3, 3),
    )
    wanted = sum(x[:, i : i + 3, j : j + 3] @ w[:, :, i, j].T for i in range(2) for j in range(2))
    got = _run(lambda x, w: convolution(x, w, slide), x, w)
    return float(np.max(np.abs(got - wanted)))


_TRIALS: Mapping[tuple[Call, str], Callable[[], float]] = MappingProxyType(
    {
        (Call.PRODUCT, "float32"): functools.partial(_products, "float32"),
        (Call.PRODUCT, "bfloat16"): functools.partial(_products, "bfloat16"),
        (Call.CONVOLUTION, "float32"): _convolutions,
    }
)
"""By call and dtype of its operands: how far results are from numpy's."""


def onednn_is_good(call: Call, dtype: str) -> bool:
    """Whether oneDNN may be used here; what it gives is compared once, which takes 0.1 seconds.

    Args:
        call: What it is asked for.
        dtype: Of the operands. Convolutions are computed in float32, whatever they are given.

    Returns:
        False where the environment says so, on processors for which it has no kernel of its own,
        where jax leaves the CPU out, where jaxlib has no oneDNN, or where it gives other values
        than numpy; the last two are one line in the log.
    """
    if os.environ.get(ONEDNN_VARIABLE, "").strip() == "0" or not has_generated_kernels(call):
        return False
    if not _jax_has_the_cpu():
        return False
    return _is_proved(call, "float32" if call is Call.CONVOLUTION else dtype)


@functools.cache
def _jax_has_the_cpu() -> bool:
    """Whether jax runs anything on the CPU here: ``JAX_PLATFORMS=cuda`` leaves it out."""
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:
        return False


@functools.cache
def _is_proved(call: Call, dtype: str) -> bool:
    """Whether it gives what numpy gives; narrow products only where those of float32 are right."""
    trial = _TRIALS.get((call, dtype))
    if trial is None or (dtype != "float32" and not _is_proved(call, "float32")):
        return False
    left_out = f"oneDNN's {dtype} {call.value} are left out"
    try:
        off = trial()
    except Exception as error:  # whatever jax, XLA or oneDNN raise: this is how they are asked
        raise_error_of_handler(error)
        _LOG.warning("%s: jaxlib cannot run them (%s)", left_out, _first_line(error))
        return False
    if off:
        _LOG.warning("%s: they give values that are off by %g", left_out, off)
        return False
    return True


def has_generated_kernels(call: Call) -> bool:
    """Whether oneDNN has code for a call that is made for this processor, and divides no products.

    Args:
        call: What it is asked for.
    """
    ceiling = os.environ.get(_CEILING_VARIABLE, "").strip().upper()
    isa = set(processor().isa)
    if ceiling.startswith("AVX2"):
        isa -= _AVX512
    elif ceiling == "AVX" or ceiling.startswith("SSE"):
        isa -= _AVX512 | _AVX2
    return isa >= _WANTED[call]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
