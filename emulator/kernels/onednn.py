"""oneDNN's matrix product and convolution, which jaxlib holds beside XLA's own.

XLA:CPU knows them as custom calls with a JSON configuration (``OneDnnMatMulConfig`` and
``OneDnnConvolutionConfig`` in ``xla/backends/cpu/runtime/onednn/onednn_config.proto``). jax offers
them nowhere, so they are proved before they are used, see :mod:`emulator.kernels.proof`. On other
platforms than the CPU the same primitives are lowered to what XLA has there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from emulator.kernels.precision import compute_dtype, product_precision

__all__ = ["CALLS", "PRIMITIVES", "Axes", "Slide", "convolution", "matmul"]

CALLS = "__onednn$"
"""With this the targets of its custom calls begin."""

PRIMITIVES = "onednn_"
"""With this the names of jax's operations that become such calls begin."""

_mlir = cast("Any", mlir)  # jax types it in part
_stablehlo = cast("Any", stablehlo)
_ir = cast("Any", ir)


def _row_major(avals: Sequence[Any]) -> Any:
    rows = [np.arange(len(a.shape) - 1, -1, -1, dtype=np.int64) for a in avals]
    index = _ir.IndexType.get()
    return _ir.ArrayAttr.get([_ir.DenseIntElementsAttr.get(row, type=index) for row in rows])


def _primitive(
    name: str,
    target: str,
    result: Callable[..., Any],
    config: Callable[..., Mapping[str, Any]],
    elsewhere: Callable[..., jax.Array],
) -> Callable[..., jax.Array]:
    """A primitive that is a custom call on the CPU, and a function of jax on other platforms."""
    primitive = Primitive(f"{PRIMITIVES}{name}")
    primitive.def_abstract_eval(result)
    primitive.def_impl(jax.jit(elsewhere, static_argnames=("config",)))

    def lower(context: Any, *operands: Any, **parameters: Any) -> Any:
        settings = {"outer_dimension_partitions": [], **config(**parameters)}
        call = _stablehlo.CustomCallOp(
            [_mlir.aval_to_ir_type(context.module_context, context.avals_out[0])],
            list(operands),
            call_target_name=_ir.StringAttr.get(target),
            backend_config=_ir.StringAttr.get(json.dumps(settings, sort_keys=True)),
            api_version=_ir.IntegerAttr.get(_ir.IntegerType.get_signless(32), 2),
            operand_layouts=_row_major(context.avals_in),
            result_layouts=_row_major(context.avals_out),
        )
        return call.results

    _mlir.register_lowering(primitive, lower, platform="cpu")
    _mlir.register_lowering(primitive, _mlir.lower_fun(elsewhere, multiple_results=False))
    return cast("Callable[..., jax.Array]", primitive.bind)


# -- products ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """How a product reads its operands: ``(..., m, k)`` and ``(..., k, n)`` unless turned."""

    turned_a: bool
    turned_b: bool
    dtype: Any


def _product_shape(a: Any, b: Any, *bias: Any, config: _Product) -> Any:
    rows = a.shape[-1 if config.turned_a else -2]
    columns = b.shape[-2 if config.turned_b else -1]
    return a.update(shape=(*a.shape[:-2], rows, columns), dtype=np.dtype(config.dtype))


def _product_config(*, config: _Product) -> Mapping[str, Any]:
    turns = {"transpose_a": config.turned_a, "transpose_b": config.turned_b}
    return {"onednn_matmul_config": turns}


def _biased_config(*, config: _Product) -> Mapping[str, Any]:
    plain = _product_config(config=config)["onednn_matmul_config"]
    return {"onednn_matmul_config": {**plain, "fusions": {"ops": ["BIAS"]}}}


def _product_elsewhere(a: jax.Array, b: jax.Array, *, config: _Product) -> jax.Array:
    batch = tuple(range(a.ndim - 2))
    axes = (
        ((a.ndim - 2 if config.turned_a else a.ndim - 1,),
         (b.ndim - 1 if config.turned_b else b.ndim - 2,)),
        (batch, batch),
    )  # fmt: skip
    precision = product_precision(a.dtype)
    return lax.dot_general(a, b, axes, precision=precision, preferred_element_type=config.dtype)


def _biased_elsewhere(
    a: jax.Array, b: jax.Array, bias: jax.Array, *, config: _Product
) -> jax.Array:
    wide = replace(config, dtype=compute_dtype(a.dtype))
    y = _product_elsewhere(a, b, config=wide) + bias.astype(wide.dtype)
    return y.astype(config.dtype)


_matmul = _primitive(
    "matmul", f"{CALLS}matmul", _product_shape, _product_config, _product_elsewhere
)
_biased_matmul = _primitive(
    "biased_matmul", f"{CALLS}matmul", _product_shape, _biased_config, _biased_elsewhere
)


def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    turned_a: bool = False,
    turned_b: bool = False,
    dtype: Any = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Product of matrices, or of as many pairs of them as their leading axes say.

    Args:
        a: ``(..., m, k)``, or ``(..., k, m)`` if it is turned; float32 or bfloat16.
        b: ``(..., k, n)``, or ``(..., n, k)`` if it is turned; of the same dtype and leading axes.
        turned_a, turned_b: Whether the last two axes are exchanged.
        dtype: Of the result, that of the operands if None.
        bias: ``(n,)`` of the operands' dtype, added before the result is rounded.

    Returns:
        ``(..., m, n)``, accumulated in float32.
    """
    config = _Product(turned_a=turned_a, turned_b=turned_b, dtype=np.dtype(dtype or a.dtype))
    if bias is None:
        return _matmul(a, b, config=config)
    return _biased_matmul(a, b, bias.reshape((1,) * (a.ndim - 1) + bias.shape), config=config)


# -- convolutions -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Which axis of an array is what to a convolution.

    Args:
        outer: The batch of data; the input features of a kernel.
        inner: The features of data; the output features of a kernel.
        spatial: The axes that the window slides over.
    """

    outer: int
    inner: int
    spatial: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slide:
    """A convolution as oneDNN is told of it.

    Args:
        x, w, y: Axes of data, kernel and result.
        stride, dilation, low, high: Of the window, per spatial axis.
        groups: Feature groups.
        shape: Of the result.
    """

    x: Axes
    w: Axes
    y: Axes
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    groups: int
    shape: tuple[int, ...]


def _convolution_shape(x: Any, w: Any, *, config: Slide) -> Any:
    return x.update(shape=config.shape)


def _data(axes: Axes, rank: int) -> Mapping[str, Any]:
    names = ("batch_dim", "feature_dim")
    return {"dims": rank, "data": {**_named(names, axes), "spatial_dims": list(axes.spatial)}}


def _named(names: tuple[str, str], axes: Axes) -> Mapping[str, int]:
    return dict(zip(names, (axes.outer, axes.inner), strict=True))


def _convolution_config(*, config: Slide) -> Mapping[str, Any]:
    rank = len(config.shape)
    kernel = _named(("input_feature_dim", "output_feature_dim"), config.w)
    spatial = {"spatial_dims": list(config.w.spatial)}
    return {
        "onednn_conv_config": {
            "dims": rank,
            "input": _data(config.x, rank),
            "kernel": {"dims": rank, "filter": {**kernel, **spatial}},
            "output": _data(config.y, rank),
            "window": {
                "strides": list(config.stride),
                "pad_left": list(config.low),
                "pad_right": list(config.high),
                "window_dilations": list(config.dilation),
            },
            "feature_groups": config.groups,
        }
    }


def _convolution_elsewhere(x: jax.Array, w: jax.Array, *, config: Slide) -> jax.Array:
    numbers = lax.ConvDimensionNumbers(
        lhs_spec=(config.x.outer, config.x.inner, *config.x.spatial),
        rhs_spec=(config.w.inner, config.w.outer, *config.w.spatial),
        out_spec=(config.y.outer, config.y.inner, *config.y.spatial),
    )
    return lax.conv_general_dilated(
        x,
        w,
        config.stride,
        list(zip(config.low, config.high, strict=True)),
        rhs_dilation=config.dilation,
        dimension_numbers=numbers,
        feature_group_count=config.groups,
        precision=product_precision(x.dtype),
    )


_convolution = _primitive(
    "convolution",
    "__onednn$convolution",
    _convolution_shape,
    _convolution_config,
    _convolution_elsewhere,
)


def convolution(x: jax.Array, w: jax.Array, config: Slide) -> jax.Array:
    """Cross-correlation of data with a kernel, its axes in any order.

    Args:
        x: Data, float32 or bfloat16.
        w: Kernel, of the same dtype.
        config: The window, and which axis is what.

    Returns:
        The result, of ``config.shape``.
    """
    return _convolution(x, w, config=config)
