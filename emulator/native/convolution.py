"""Convolutions over channels-last data by the native kernels, and their gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.kernels.precision import widen
from emulator.kernels.problems import Convolution, Part, last_padding
from emulator.kernels.windows import Window
from emulator.native.library import native_library, threads

__all__ = ["convolve", "has_kernel", "input_gradient", "weight_gradient"]

_PARTS = (Part.FORWARD, Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT)
"""By the numbers that the native code knows them by."""

_TARGET = "emulator_convolution"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A convolution as the native code is told of it.

    Args:
        part: What of it is computed.
        groups: Feature groups.
        x, y: Shapes of data and result, channels last.
        w: Shape of the kernels, ``(O, C / groups, ...)``.
        stride, dilation, low, high: Of the window.
    """

    part: Part
    groups: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @classmethod
    def of(
        cls, part: Part, batch: int, size: tuple[int, ...], w: tuple[int, ...], window: Window,
        groups: int,
    ) -> _Call:  # fmt: skip
        return cls(
            part=part,
            groups=groups,
            x=(batch, *size, w[1] * groups),
            w=w,
            y=(batch, *window.out, w[0]),
            stride=window.stride,
            dilation=window.dilation,
            low=window.low,
            high=last_padding(
                window.out, window.stride, window.dilation, window.kernel, window.low, size
            ),
        )

    def arrays(self) -> dict[str, tuple[int, ...]]:
        names = ("x", "w", "y", "stride", "dilation", "low", "high")
        return {name: getattr(self, name) for name in names}


@functools.lru_cache(maxsize=1024)
def _scratch(call: _Call, among: int) -> int | None:
    library = native_library()
    if library is None:
        return None
    part = _PARTS.index(call.part)
    axes = len(call.stride)
    arrays = call.arrays().values()
    return library.scratch("convolution_scratch", part, call.groups, among, axes, *arrays)


def has_kernel(problem: Convolution) -> bool:
    """Whether the native kernels compute a convolution, or a gradient of one.

    Args:
        problem: The convolution.

    Returns:
        False where they are missing, for other types than float32 and those that are computed in
        it, for more than three axes, and for padding that oneDNN does not know: cropped data, and
        windows that see nothing else.
    """
    if native_library() is None or problem.dtype not in ("float32", "bfloat16", "float16"):
        return False
    if problem.empty or len(problem.size) > 3 or not problem.size:
        return False
    reaches = [d * (k - 1) for d, k in zip(problem.dilation, problem.kernel, strict=True)]
    pads = zip(problem.low, problem.high, reaches, strict=True)
    return all(0 <= low <= reach and 0 <= high <= reach for low, high, reach in pads)


def _run(call: _Call, first: jax.Array, second: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    among = threads()
    scratch = _scratch(call, among)
    if scratch is None:
        raise NotImplementedError(f"oneDNN has no kernel for {call}")
    results = (
        jax.ShapeDtypeStruct(shape, jnp.float32),
        jax.ShapeDtypeStruct((scratch,), jnp.uint8),
    )
    attributes: dict[str, Any] = {
        "part": np.int64(_PARTS.index(call.part)),
        "groups": np.int64(call.groups),
        "threads": np.int64(among),
        **{name: np.asarray(value, np.int64) for name, value in call.arrays().items()},
    }
    result, _ = jax.ffi.ffi_call(_TARGET, results)(first, second, **attributes)
    return result


def _last(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(widen(x), 1, -1)


def convolve(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """Convolution of ``(N, C, ...)`` with ``(O, C / groups, ...)``, in float32."""
    call = _Call.of(Part.FORWARD, x.shape[0], x.shape[2:], w.shape, window, groups)
    return jnp.moveaxis(_run(call, _last(x), widen(w), call.y), -1, 1)


def input_gradient(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve` in its data, of spatial sizes ``size``."""
    call = _Call.of(Part.INPUT_GRADIENT, g.shape[0], size, w.shape, window, groups)
    return jnp.moveaxis(_run(call, _last(g), widen(w), call.x), -1, 1)


def weight_gradient(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """The transpose of :func:`convolve` in its kernels, of shape ``shape``."""
    call = _Call.of(Part.WEIGHT_GRADIENT, x.shape[0], x.shape[2:], shape, window, groups)
    return _run(call, _last(x), _last(g), shape)
