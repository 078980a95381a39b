"""Convolution and its two gradients: candidates, and the one that is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp

from emulator.kernels import conv_by_onednn as by_onednn
from emulator.kernels import conv_by_xla as by_xla
from emulator.kernels.choice import Candidate, choose
from emulator.kernels.conv_by_tiles import are_tiles, input_gradient_of_tiles
from emulator.kernels.precision import compute_dtype
from emulator.kernels.problems import Convolution, Part
from emulator.kernels.proof import Call, has_generated_kernels
from emulator.kernels.tap_sums import weight_gradient_by_tap_sums
from emulator.kernels.windows import Window
from emulator.native import convolution as native

__all__ = ["CANDIDATES", "convolve", "input_gradient", "runs_channels_last", "weight_gradient"]

_FEW_CHANNELS = 16
"""Channels up to which an unmeasured input gradient is one product and an overlap-add."""
_FEW_TAPS = 32
"""Taps times channels up to which an unmeasured convolution is one product."""
_MANY_TAPS = 64
"""Taps up to which a convolution of single channels is a sum of them; the code grows with it."""
_LEAST_FOR_WINDOWS = 2_000_000
"""Operations from which a kernel gradient may be a product of windows."""
_STACKED = 16 << 20
"""Elements up to which windows are laid side by side; XLA packs larger ones piece by piece."""
_LANES = 16
"""Channels of a depthwise convolution that oneDNN's kernel takes at a time."""
_LEAST_FOR_NATIVE = 200_000
"""Operations from which a convolution is worth the microseconds of a native call."""
_MOST_PHASES = 16
"""Strides of more phases are left to XLA: the code grows with them."""


def _stacked(p: Convolution) -> int:
    return math.prod(p.kernel) * p.batch * p.channels * math.prod(p.out)


def _few_taps(p: Convolution) -> bool:
    return p.groups == 1 and p.channels * math.prod(p.kernel) <= _FEW_TAPS


def _depthwise(p: Convolution) -> bool:
    return 1 < p.groups == p.channels and math.prod(p.kernel) <= _MANY_TAPS


def _by_gemm(p: Convolution) -> bool:
    return p.groups == 1 and _stacked(p) <= _STACKED


def _narrow(p: Convolution) -> bool:
    few = p.groups == 1 and math.prod(p.kernel) > 1 and p.channels <= _FEW_CHANNELS
    return few and _stacked(p) <= _STACKED


def _swapped(p: Convolution) -> bool:
    """Whether XLA (jaxlib 0.10) may exchange the operands of an input gradient.

    It takes the smaller one for the kernel, and where one axis says so and another does not, its
    check of the outcome ends the process. Found by drawn convolutions; grouped ones are let be.
    """
    pairs = list(zip(p.kernel, p.out, strict=True))
    strided = p.groups == 1 and max(p.stride, default=1) > 1
    return strided and any(k > o for k, o in pairs) and any(k < o for k, o in pairs)


def _overlapping(p: Convolution) -> bool:
    return _narrow(p) or _swapped(p)


def _always(p: Convolution) -> bool:
    del p
    return True


def _onednn(p: Convolution) -> bool:
    """What oneDNN has generated kernels for, and what is not empty.

    The rest it divides into products, whose threads XLA's executor may wait for forever.
    """
    sizes = (p.batch, p.channels, p.features, *p.size, *p.out, *p.kernel)
    if p.dtype not in ("float32", "bfloat16", "float16") or min(sizes) == 0 or len(p.size) > 3:
        return False
    depthwise = p.groups == p.channels == p.features and p.groups % _LANES == 0
    if p.groups > 1 and not (depthwise and max(p.dilation) == 1):
        return False
    # Without AVX-512 it divides those over one axis into products.
    if p.groups > 1 and len(p.size) != 2 and not has_generated_kernels(Call.PRODUCT):
        return False
    # A window that sees nothing but padding.
    reaches = [d * (k - 1) for d, k in zip(p.dilation, p.kernel, strict=True)]
    padded = (
        (o - 1) * s + r + 1 - n for o, s, r, n in zip(p.out, p.stride, reaches, p.size, strict=True)
    )
    return all(most <= 2 * r for most, r in zip(padded, reaches, strict=True))


def _by_windows(p: Convolution) -> bool:
    """Whether a kernel gradient may be a product of windows.

    A step makes windows on the thread that everything waits for, and a convolution beside it:
    LeNet's at one image are two to five times as fast alone, and its step 3 % slower.
    """
    return _by_gemm(p) and p.operations >= _LEAST_FOR_WINDOWS


def _onednn_plain(p: Convolution) -> bool:
    return _onednn(p) and max(p.stride) == 1


def _onednn_phases(p: Convolution) -> bool:
    phased = 1 < math.prod(p.stride) <= _MOST_PHASES and max(p.dilation) == 1
    return _onednn(p) and phased


def _onednn_taps(p: Convolution) -> bool:
    few = math.prod(p.kernel) <= _MANY_TAPS and p.dtype in ("float32", "bfloat16")
    return _onednn(p) and p.groups == 1 and few


def _named(
    name: str,
    applies: Callable[[Convolution], bool],
    run: Callable[..., jax.Array],
    *,
    onednn: Call | None = None,
    native: bool = False,
) -> Candidate[Convolution]:
    return Candidate(name=name, applies=applies, run=run, onednn=onednn, native=native)


def _native(p: Convolution) -> bool:
    return p.operations >= _LEAST_FOR_NATIVE and native.has_kernel(p)


CANDIDATES: dict[Part, tuple[Candidate[Convolution], ...]] = {
    Part.FORWARD: (
        _named("few taps", lambda p: _few_taps(p) and _by_gemm(p), by_xla.convolve_by_gemm),
        _named("scaled taps", _depthwise, by_xla.convolve_depthwise),
        _named("xla", _always, by_xla.convolve),
        _named("onednn", _onednn, by_onednn.convolve_onednn, onednn=Call.CONVOLUTION),
        _named("native", _native, native.convolve, native=True),
    ),
    Part.INPUT_GRADIENT: (
        _named("tiles", lambda p: p.tiled, input_gradient_of_tiles),
        _named("overlap-add", _overlapping, by_xla.input_gradient_by_gemm),
        _named("scaled taps", _depthwise, by_xla.input_gradient_depthwise),
        _named("xla", lambda p: not _swapped(p), by_xla.input_gradient),
        _named("onednn", _onednn_plain, by_onednn.input_gradient_onednn, onednn=Call.CONVOLUTION),
        _named(
            "onednn phases",
            _onednn_phases,
            by_onednn.input_gradient_by_phases,
            onednn=Call.CONVOLUTION,
        ),
        _named("native", _native, native.input_gradient, native=True),
    ),
    Part.WEIGHT_GRADIENT: (
        _named("tap sums", _depthwise, weight_gradient_by_tap_sums),
        _named("grouped gemm", lambda p: p.groups > 1, by_xla.weight_gradient_by_gemm),
        _named("xla", lambda p: p.groups == 1, by_xla.weight_gradient),
        _named("gemm", _by_windows, by_xla.weight_gradient_by_gemm),
        _named("onednn taps", _onednn_taps, by_onednn.weight_gradient_by_taps, onednn=Call.PRODUCT),
        _named("native", _native, native.weight_gradient, native=True),
    ),
}
"""Candidates of each part. The first that applies is the plain one."""


def _no_result(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    del groups
    return jnp.zeros((x.shape[0], w.shape[0], *window.out), compute_dtype(x.dtype))


def _no_input_gradient(
    g: jax.Array, w: jax.Array, window: Window, groups: int, size: tuple[int, ...]
) -> jax.Array:
    del window
    return jnp.zeros((g.shape[0], w.shape[1] * groups, *size), compute_dtype(w.dtype))


def _no_weight_gradient(
    x: jax.Array, g: jax.Array, window: Window, groups: int, shape: tuple[int, ...]
) -> jax.Array:
    del g, window, groups
    return jnp.zeros(shape, compute_dtype(x.dtype))


EMPTY: Mapping[Part, Candidate[Convolution]] = MappingProxyType(
    {
        Part.FORWARD: _named("empty", _always, _no_result),
        Part.INPUT_GRADIENT: _named("empty", _always, _no_input_gradient),
        Part.WEIGHT_GRADIENT: _named("empty", _always, _no_weight_gradient),
    }
)
"""What computes a part where nothing is multiplied: sums of nothing, zeros."""


def _chosen(problem: Convolution) -> Candidate[Convolution]:
    if problem.empty:
        return EMPTY[problem.part]
    return choose(problem, CANDIDATES[problem.part])


def _problem(
    part: Part, dtype: object, batch: int, channels: int, features: int, groups: int,
    size: tuple[int, ...], window: Window,
) -> Convolution:  # fmt: skip
    return Convolution(
        part=part,
        dtype=str(dtype),
        batch=batch,
        channels=channels,
        features=features,
        groups=groups,
        size=size,
        out=window.out,
        kernel=window.kernel,
        stride=window.stride,
        dilation=window.dilation,
        low=window.low,
        tiled=part is Part.INPUT_GRADIENT and groups == 1 and are_tiles(window, size),
    )


def _forward_problem(
    x: tuple[int, ...], w: tuple[int, ...], dtype: object, window: Window, groups: int
) -> Convolution:
    return _problem(Part.FORWARD, dtype, x[0], x[1], w[0], groups, x[2:], window)


def convolve(x: jax.Array, w: jax.Array, window: Window, groups: int) -> jax.Array:
    """Convolution, in the dtype that it is computed in.

    Args:
        x: Data ``(N, C, ...)``.
        w: Kernels ``(O, C / groups, ...)``, of the same dtype.
        window: The window.
        groups: Feature groups.

    Returns:
        ``(N, O, ...)``, float32 for bfloat16 and float16.
    """
    problem = _forward_problem(x.shape, w.shape, x.dtype, window, groups)
    return _chosen(problem).run(x, w, window, groups)


def runs_channels_last(
    x: tuple[int, ...], w: tuple[int, ...], dtype: object, window: Window, groups: int
) -> bool:
    """Whether :func:`convolve` runs channels last, for data and kernels of these shapes."""
    problem = _forward_problem(x, w, dtype, window, groups)
    return _chosen(problem).name not in ("few taps", "empty")


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
    channels = w.shape[1] * groups
    part = Part.INPUT_GRADIENT
    problem = _problem(part, w.dtype, g.shape[0], channels, w.shape[0], groups, size, window)
    if not problem.empty and not jnp.issubdtype(w.dtype, jnp.inexact):
        return by_xla.input_gradient_of_integers(g, w, window, groups, size)
    return _chosen(problem).run(g, w, window, groups, size)


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
    part = Part.WEIGHT_GRADIENT
    batch, channels, *size = x.shape
    problem = _problem(part, x.dtype, batch, channels, shape[0], groups, tuple(size), window)
    return _chosen(problem).run(x, g, window, groups, shape)
