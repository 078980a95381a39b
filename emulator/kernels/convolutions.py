"""Convolution and its two gradients: candidates, and the one that is taken."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from emulator.kernels import conv_by_native as by_native, conv_by_xla as by_xla
from emulator.kernels.conv_by_xla import input_gradient_of_tiles, weight_gradient_by_tap_sums
from emulator.kernels.precision import compute_dtype
from emulator.kernels.problems import Candidate, Convolution, Part, choose
from emulator.kernels.windows import Window

_LEAST_FOR_NATIVE = 200_000
"""Operations from which a convolution is worth the microseconds of a native call."""
_FEW_CHANNELS = 16
"""Channels up to which an input gradient is one product and an overlap-add."""
_FEW_TAPS = 32
"""Taps times channels up to which a convolution is one product."""
_MANY_TAPS = 64
"""Taps up to which a convolution of single channels is a sum of them; the code grows with it."""
_STACKED = 16 << 20
"""Elements up to which windows are laid side by side; XLA packs larger ones piece by piece."""


def _native(p: Convolution) -> bool:
    return p.operations >= _LEAST_FOR_NATIVE and by_native.has_kernel(p)


def _stack_size(p: Convolution) -> int:
    return p.taps * p.batch * p.channels * math.prod(p.window.out)


def _few_taps(p: Convolution) -> bool:
    return p.groups == 1 and p.channels * p.taps <= _FEW_TAPS and _stack_size(p) <= _STACKED


def _depthwise(p: Convolution) -> bool:
    return 1 < p.groups == p.channels and p.taps <= _MANY_TAPS


def _narrow(p: Convolution) -> bool:
    few = p.groups == 1 and p.taps > 1 and p.channels <= _FEW_CHANNELS
    return few and _stack_size(p) <= _STACKED


def _may_swap(p: Convolution) -> bool:
    """Whether XLA (jaxlib 0.10) may exchange the operands of an input gradient.

    It takes the smaller one for the kernel, and where one axis says so and another does not, its
    check of the outcome ends the process. Found by drawn convolutions; grouped ones are let be.
    """
    pairs = list(zip(p.window.kernel, p.window.out, strict=True))
    strided = p.groups == 1 and max(p.window.stride, default=1) > 1
    return strided and any(k > o for k, o in pairs) and any(k < o for k, o in pairs)


def _always(p: Convolution) -> bool:
    del p
    return True


def _entry(
    name: str, applies: Callable[[Convolution], bool], run: Callable[..., jax.Array]
) -> Candidate[Convolution]:
    return Candidate(name=name, applies=applies, run=run)


CANDIDATES: dict[Part, tuple[Candidate[Convolution], ...]] = {
    Part.FORWARD: (
        _entry("native", _native, by_native.convolve),
        _entry("few taps", _few_taps, by_xla.convolve_by_gemm),
        _entry("scaled taps", _depthwise, by_xla.convolve_depthwise),
        _entry("xla", _always, by_xla.convolve),
    ),
    Part.INPUT_GRADIENT: (
        _entry("tiles", lambda p: p.tiled, input_gradient_of_tiles),
        _entry("native", _native, by_native.input_gradient),
        _entry("overlap-add", lambda p: _narrow(p) or _may_swap(p), by_xla.input_gradient_by_gemm),
        _entry("scaled taps", _depthwise, by_xla.input_gradient_depthwise),
        _entry("xla", lambda p: not _may_swap(p), by_xla.input_gradient),
    ),
    Part.WEIGHT_GRADIENT: (
        _entry("native", _native, by_native.weight_gradient),
        _entry("tap sums", _depthwise, weight_gradient_by_tap_sums),
        _entry("grouped gemm", lambda p: p.groups > 1, by_xla.weight_gradient_by_gemm),
        _entry("xla", lambda p: p.groups == 1, by_xla.weight_gradient),
    ),
}
"""Candidates of each part, the best first."""


def convolve(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """Convolve; the result has the dtype in which it is computed.

    Args:
        x: Data ``(N, C, ...)``.
        w: Kernels ``(O, C / groups, ...)``, of the same dtype.
        window: The window.
        groups: Feature groups.

    Returns:
        ``(N, O, ...)``, float32 for bfloat16 and float16.
    """
    problem = Convolution.of(Part.FORWARD, x.dtype, x.shape, w.shape, window, groups)
    if problem.empty:
        return jnp.zeros((x.shape[0], w.shape[0], *window.out), compute_dtype(x.dtype))
    return choose(problem, CANDIDATES[Part.FORWARD]).run(x, w, window, groups)


def runs_channels_last(
    x: tuple[int, ...], w: tuple[int, ...], dtype: object, window: Window, groups: int
) -> bool:
    """Whether :func:`convolve` runs channels last, for data and kernels of these shapes."""
    problem = Convolution.of(Part.FORWARD, dtype, x, w, window, groups)
    return not problem.empty and choose(problem, CANDIDATES[Part.FORWARD]).name != "few taps"


def input_gradient(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    """Cotangent of a convolution's data.

    Args:
        g: Cotangent of the result, ``(N, O, ...)``.
        w: Kernels ``(O, C / groups, ...)``.
        window: The window.
        groups: Feature groups.
        size: Spatial sizes of the data.

    Returns:
        ``(N, C, *size)``, float32 for narrow types.
    """
    data = (g.shape[0], w.shape[1] * groups, *size)
    problem = Convolution.of(Part.INPUT_GRADIENT, w.dtype, data, w.shape, window, groups)
    if problem.empty:
        return jnp.zeros(data, compute_dtype(w.dtype))
    if not jnp.issubdtype(w.dtype, jnp.inexact):
        return by_xla.input_gradient_of_integers(g, w, window, groups, size)
    return choose(problem, CANDIDATES[Part.INPUT_GRADIENT]).run(g, w, window, groups, size)


def weight_gradient(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    """Cotangent of a convolution's kernels.

    Args:
        x: Data ``(N, C, ...)``.
        g: Cotangent of the result, ``(N, O, ...)``.
        window: The window.
        groups: Feature groups.
        shape: Of the kernels.

    Returns:
        An array of that shape, float32 for narrow types.
    """
    problem = Convolution.of(Part.WEIGHT_GRADIENT, x.dtype, x.shape, shape, window, groups)
    if problem.empty:
        return jnp.zeros(shape, compute_dtype(x.dtype))
    return choose(problem, CANDIDATES[Part.WEIGHT_GRADIENT]).run(x, g, window, groups, shape)
