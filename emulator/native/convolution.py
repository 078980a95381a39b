"""Convolutions over channels-last float32 data, and their gradients, by oneDNN."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.native.library import native_library

_TARGET = "emulator_convolution"


class ConvolutionPart(IntEnum):
    """What of a convolution is computed, by the numbers that ``src/convolution.cc`` has."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """A call of the kernels for convolutions.

    Args:
        part: What of the convolution is computed.
        groups: Feature groups.
        threads: Among how many threads it is divided.
        x, y: Shapes of data and result, channels last.
        w: Shape of the kernels, ``(O, C / groups, ...)``.
        stride, dilation: Of the window, per spatial axis.
        low, high: Padding before and after the data, per spatial axis.
    """

    part: ConvolutionPart
    groups: int
    threads: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Its shapes and its window, in the order of the native functions' arguments."""
        names = ("x", "w", "y", "stride", "dilation", "low", "high")
        return {name: getattr(self, name) for name in names}

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of what it computes."""
        of_part = {ConvolutionPart.FORWARD: self.y, ConvolutionPart.INPUT_GRADIENT: self.x}
        return of_part.get(self.part, self.w)


@functools.lru_cache(maxsize=1024)
def _scratch(call: ConvolutionCall) -> int | None:
    library = native_library()
    if library is None:
        return None
    numbers = (int(call.part), call.groups, call.threads, len(call.stride))
    return library.scratch("convolution_scratch", *numbers, *call.arrays().values())


def has_convolution(call: ConvolutionCall) -> bool:
    """Whether oneDNN has a kernel for a call: generated code for this processor.

    Args:
        call: The call.

    Returns:
        False without native kernels, too.
    """
    return native_library() is not None and _scratch(call) is not None


def call_convolution(call: ConvolutionCall, first: jax.Array, second: jax.Array) -> jax.Array:
    """Compute a part of a convolution.

    Args:
        call: Which part of which convolution.
        first: Data, for an input gradient the cotangent of the result; float32, channels last.
        second: Kernels, for a weight gradient the cotangent of the result.

    Returns:
        What the part is, in float32: the result and an input gradient channels last.

    Raises:
        NotImplementedError: If :func:`has_convolution` says no.
    """
    scratch = _scratch(call) if native_library() is not None else None
    if scratch is None:
        raise NotImplementedError(f"no native kernel computes {call}")
    results = (
        jax.ShapeDtypeStruct(call.result, jnp.float32),
        jax.ShapeDtypeStruct((scratch,), jnp.uint8),
    )
    attributes: dict[str, Any] = {
        "part": np.int64(call.part),
        "groups": np.int64(call.groups),
        "threads": np.int64(call.threads),
        "scratch": np.int64(scratch),
        **{name: np.asarray(value, np.int64) for name, value in call.arrays().items()},
    }
    result, _ = jax.ffi.ffi_call(_TARGET, results)(first, second, **attributes)
    return result
