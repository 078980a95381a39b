"""Lowerings of activation functions.

Where torch picks a subgradient (at 0, at the knees of hardtanh) or lets NaN through,
the formulas are written so that autodiff gives the same. For half types the gradients of
sigmoid and tanh start from the rounded result, like torch's.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from emulator.kernels.precision import LOW, real, widen, widened
from emulator.kernels.unfused import in_memory
from emulator.op_facts.facts import Fusing
from emulator.ops import random
from emulator.ops._gradient import saves_result, with_gradient
from emulator.ops._promote import broadcast_to
from emulator.ops.random import MissingSeed
from emulator.ops.registry import op, pointwise


def _keep(kept: jax.Array, x: jax.Array) -> jax.Array:
    """``x`` or zeros."""
    if x.dtype not in LOW:
        return jnp.where(kept, x, jnp.zeros((), x.dtype))
    # By their bits: XLA:CPU widens a choice of 16-bit floats and rounds.
    bits = lax.bitcast_convert_type(x, jnp.uint16)
    return lax.bitcast_convert_type(jnp.where(kept, bits, jnp.uint16(0)), x.dtype)


def _relu_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    # By the result, which the next layer keeps anyhow: nothing else then reads the argument, and
    # what makes it is fused into this.
    return (_keep(~(y <= 0), g),)


@pointwise("aten.relu.default", reads=(0,))
@with_gradient(_relu_backward, saves=saves_result)
def relu(x: jax.Array) -> jax.Array:
    """``max(x, 0)``; -0.0 and NaN stay; the gradient of NaN passes, that of zeros does not."""
    return _keep(~(x < 0), x)


def _gelu_backward(tanh: bool, x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    if tanh:
        # Made again it takes less time than written and read; an error function takes more.
        x = in_memory(x)
        u = _TANH_SCALE * (x + 0.044715 * x * x * x)
        # Of s = sigmoid(u), 1 - s would lose digits where s is close to 1: s (1 - s) is even in u.
        e = jnp.exp(-jnp.abs(u))
        r = 1 / (1 + e)
        s = jnp.where(u < 0, e * r, r)
        return (g * (s + x * (e * r * r) * _TANH_SCALE * (1 + 3 * 0.044715 * x * x)),)
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (g * (0.5 * (1 + lax.erf(x * math.sqrt(0.5))) + x * density),)


_TANH_SCALE = 2 * math.sqrt(2 / math.pi)


@with_gradient(_gelu_backward, static=(1,))
def _gelu(x: jax.Array, tanh: bool) -> jax.Array:
    if tanh:
        # (1 + tanh(u)) / 2 is sigmoid(2 u), which loses no digits where tanh is close to -1.
        return x * jax.nn.sigmoid(_TANH_SCALE * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@pointwise("aten.gelu.default", reads=(0,), fusing=Fusing.DEAR)
@widened
def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """Gaussian error linear unit, exact or with the tanh approximation."""
    return _gelu(x, approximate == "tanh")


@pointwise("aten.leaky_relu.default", reads=(0,))
@widened
def leaky_relu(x: jax.Array, negative_slope: float = 0.01) -> jax.Array:
    """``x`` above 0, else ``negative_slope * x``."""
    return jnp.where(x > 0, x, x * negative_slope)


@op("aten.rrelu.default", reads=(0,), random=True, flops=("results", 1))
@widened
def rrelu(
    x: jax.Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    seed: jax.Array | None = None,
    stream: int = 0,
) -> jax.Array:
    """Leaky relu with a slope drawn from ``[lower, upper)`` in training, their mean in eval.

    Raises:
        MissingSeed: In training without a seed.
    """
    if not training:
        return jnp.where(x > 0, x, x * ((lower + upper) / 2))
    if seed is None:
        raise MissingSeed(op="aten.rrelu.default")
    slope = lower + (upper - lower) * random.uniform(seed, stream, x.shape, x.dtype)
    return jnp.where(x > 0, x, x * slope)


def _prelu_backward(saved: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    # A choice, not a factor of zero: what is not chosen may be infinite.
    x, weight = saved
    return jnp.where(x > 0, g, weight * g), jnp.where(x > 0, 0, x * g)


@with_gradient(_prelu_backward)
def _prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, weight * x)


@op("aten.prelu.default", "aten._prelu_kernel.default", reads=(0, 1), cheap=True)
@widened
def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x`` above 0, else ``weight * x``, one weight or one per channel (axis 1)."""
    if weight.ndim == 1 and x.ndim > 1:
        weight = weight.reshape(1, -1, *(1,) * (x.ndim - 2))
    elif x.ndim == 0:
        weight = weight.reshape(())
    weight = broadcast_to(weight, x.shape)
    return _prelu(x, weight)


@pointwise("aten.threshold.default", reads=(0,))
def threshold(x: jax.Array, threshold: float, value: float) -> jax.Array:
    """``x`` above the threshold, else ``value``."""
    return jnp.where(x <= threshold, jnp.asarray(value, x.dtype), x)


def _elu_backward(
    alpha: float, scale: float, input_scale: float, x: jax.Array, g: jax.Array
) -> tuple[jax.Array]:
    # That of expm1 is its result plus 1, which has no digits of a small slope.
    slope = jnp.exp(jnp.minimum(x, 0) * input_scale) * (alpha * scale * input_scale)
    return (g * jnp.where(x > 0, scale, slope),)


@with_gradient(_elu_backward, static=(1, 2, 3))
def _elu(x: jax.Array, alpha: float, scale: float, input_scale: float) -> jax.Array:
    above = x > 0
    # No overflow where it is not used. No zero in its place: of float16, LLVM then makes a zero of
    # -0.0, too.
    below = jnp.where(above, -1, x)
    return jnp.where(above, x * scale, jnp.expm1(below * input_scale) * (alpha * scale))


@pointwise("aten.elu.default", reads=(0,), fusing=Fusing.DEAR)
@widened
def elu(x: jax.Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> jax.Array:
    """Exponential linear unit."""
    return _elu(x, alpha, scale, input_scale)


@pointwise("aten.selu.default", reads=(0,), fusing=Fusing.DEAR)
@widened
def selu(x: jax.Array) -> jax.Array:
    """Self-normalizing exponential linear unit (Klambauer et al. 2017)."""
    return _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)


@pointwise("aten.celu.default", reads=(0,), fusing=Fusing.DEAR)
@widened
def celu(x: jax.Array, alpha: float = 1.0) -> jax.Array:
    """Continuously differentiable exponential linear unit."""
    return _elu(x, alpha, 1, 1 / alpha)


def _clip_backward(least: float, most: float, y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    inside = (y > jnp.asarray(least, y.dtype)) & (y < jnp.asarray(most, y.dtype))
    return (jnp.where(inside, g, jnp.zeros((), g.dtype)),)


@with_gradient(_clip_backward, saves=saves_result, static=(1, 2))
def _clip(x: jax.Array, least: float, most: float) -> jax.Array:
    low, high = jnp.asarray(least, x.dtype), jnp.asarray(most, x.dtype)
    # A clip flushes denormals, and takes the sign of -0.0.
    return jnp.where((x >= low) & (x <= high), x, jnp.clip(x, low, high))


@pointwise("aten.hardtanh.default", reads=(0,), complex=True)
def hardtanh(x: jax.Array, min_val: float = -1, max_val: float = 1) -> jax.Array:
    """``x`` clipped; no gradient at the knees. That is taken by the result, as relu's is."""
    return _clip(x, min_val, max_val)


@pointwise("aten.relu6.default", reads=(0,))
def relu6(x: jax.Array) -> jax.Array:
    """``x`` clipped to ``[0, 6]``."""
    return hardtanh(x, 0, 6)


def _hardsigmoid_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where((x > -3) & (x < 3), g / 6, 0),)


@pointwise("aten.hardsigmoid.default", reads=(0,))
@widened
@with_gradient(_hardsigmoid_backward)
def hardsigmoid(x: jax.Array) -> jax.Array:
    """``(x + 3) / 6`` clipped to ``[0, 1]``; no gradient at the knees, by the argument."""
    return jnp.clip(x + 3, 0, 6) / 6


def _hardswish_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    inner = g * (x / 3 + 0.5)
    return (jnp.where(x <= -3, 0, jnp.where(x >= 3, g, inner)),)


@pointwise("aten.hardswish.default", reads=(0,), fusing=Fusing.DEAR)
@widened
@with_gradient(_hardswish_backward)
def hardswish(x: jax.Array) -> jax.Array:
    """``x`` times ``(x + 3) / 6`` clipped to ``[0, 1]``, which is NaN at minus infinity."""
    return x * jnp.clip(x + 3, 0, 6) / 6


@pointwise("aten.softplus.default", reads=(0,), fusing=Fusing.DEAR)
@widened
def softplus(x: jax.Array, beta: float = 1, threshold: float = 20) -> jax.Array:
    """``log(1 + exp(beta * x)) / beta``; ``x`` itself where ``beta * x`` passes the threshold."""
    linear = x * beta > threshold
    return jnp.where(linear, x, jnp.log1p(jnp.exp(jnp.where(linear, 0, x) * beta)) / beta)


def _softplus_tanh(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    # tanh(softplus(x)) is 1 - 2 / (n + 2) with n = exp(x) (exp(x) + 2). By powers of exp(-|x|)
    # nothing overflows, and no digits are lost where it is close to 1.
    e, above = jnp.exp(-jnp.abs(x)), x > 0
    part = 1 / jnp.where(above, 1 + 2 * e * (1 + e), 2 + e * (2 + e))
    return jnp.where(above, 1 - 2 * e * e * part, e * (e + 2) * part), e, part


def _mish_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    value, e, part = _softplus_tanh(x)
    slope = 4 * e * (1 + e) * jnp.where(x > 0, e, 1) * (part * part)
    return (g * (value + x * slope),)


@pointwise("aten.mish.default", reads=(0,), fusing=Fusing.DEAR)
@widened
@with_gradient(_mish_backward)
def mish(x: jax.Array) -> jax.Array:
    """``x * tanh(softplus(x))``."""
    return x * _softplus_tanh(x)[0]


def _log_sigmoid_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    z = jnp.exp(-jnp.abs(x))
    part = z / (1 + z)
    return (g * jnp.where(x < 0, 1 - part, part),)


@pointwise("aten.log_sigmoid.default", reads=(0,), fusing=Fusing.DEAR)
@widened
@with_gradient(_log_sigmoid_backward)
def log_sigmoid(x: jax.Array) -> jax.Array:
    """Logarithm of the logistic function."""
    return jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


@op("aten.log_sigmoid_forward.default", reads=(0,), cheap=True)
@widened
def log_sigmoid_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-sigmoid as core ATen has it; torch's CPU buffer has no meaning outside its kernel."""
    return log_sigmoid(x), jax.lax.stop_gradient(jnp.exp(-jnp.abs(x)))


@pointwise("aten.softshrink.default", reads=(0,))
@widened
def softshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    """``x`` moved towards 0 by ``lambd``, 0 in between."""
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))


@pointwise("aten.hardshrink.default", reads=(0,))
def hardshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    """``x`` where it is more than ``lambd`` from 0, else 0."""
    bound = jnp.asarray(lambd, x.dtype)
    kept = (x > bound) | (x < -bound)
    nan_or_0 = jax.lax.stop_gradient(jnp.where(x != x, x, jnp.zeros((), x.dtype)))
    return jnp.where(kept, x, nan_or_0)


@op("aten.glu.default", reads=(0,), cheap=True)
@widened
def glu(x: jax.Array, dim: int = -1) -> jax.Array:
    """First half of ``dim`` times the sigmoid of its second half."""
    a, b = jnp.split(x, 2, axis=dim)
    return a * jax.nn.sigmoid(b)


@pointwise("aten.silu.default", reads=(0,), complex=True, fusing=Fusing.DEAR)
@widened
def silu(x: jax.Array) -> jax.Array:
    """``x * sigmoid(x)``."""
    return x * jax.nn.sigmoid(x)


def _sigmoid_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = widen(y)
    return ((widen(g) * (wide * (1 - wide))).astype(y.dtype),)


@with_gradient(_sigmoid_backward, saves=saves_result)
def _sigmoid(x: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(widen(x)).astype(x.dtype)


@pointwise("aten.sigmoid.default", reads=(0,), complex=True, fusing=Fusing.DEAR)
def sigmoid(x: jax.Array) -> jax.Array:
    """Logistic function; integers give float32."""
    return _sigmoid(real(x))


def _tanh_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = widen(y)
    return ((widen(g) * (1 - wide * wide)).astype(y.dtype),)


@with_gradient(_tanh_backward, saves=saves_result)
def _tanh(x: jax.Array) -> jax.Array:
    return jnp.tanh(widen(x)).astype(x.dtype)


@pointwise("aten.tanh.default", reads=(0,), complex=True, fusing=Fusing.DEAR)
def tanh(x: jax.Array) -> jax.Array:
    """Hyperbolic tangent; integers give float32."""
    return _tanh(real(x))
