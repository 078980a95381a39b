"""Lowerings: padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from emulator.ops._promote import constant
from emulator.ops.registry import op

Pads = tuple[int, ...]
"""``(left, right)`` of the last dimension, then of the one before it, and so on."""

_MODES = ("reflect", "replicate", "circular", "constant")


@op("aten.constant_pad_nd.default", moves=True, ranges=("padded",), elements="padded")
def constant_pad(x: jax.Array, pad: Pads, value: float = 0) -> jax.Array:
    """Padded with one number; negative pads crop."""
    config = [(0, 0, 0)] * x.ndim
    for i in range(len(pad) // 2):
        config[x.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(x, jnp.asarray(constant(value, x.dtype)), config)


@op("aten.pad.default", moves=True, ranges=("padded",), elements="padded")
def pad(x: jax.Array, pad: Pads, mode: str = "constant", value: float | None = None) -> jax.Array:
    """Padded by a mode: constant, reflect, replicate or circular."""
    if mode == "constant":
        return constant_pad(x, pad, 0 if value is None else value)
    return _extend(x, pad, mode)


@op("aten._pad_enum.default", moves=True)
def pad_enum(x: jax.Array, pads: Pads, mode: int, value: float | None = None) -> jax.Array:
    """Padded by a mode's number: 0 reflect, 1 replicate, 2 circular, 3 constant."""
    return pad(x, pads, _MODES[mode], value)


@op("aten._pad_circular.default", moves=True)
def pad_circular(x: jax.Array, pad: Pads) -> jax.Array:
    """Continued periodically."""
    return _extend(x, pad, "circular")


@op(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)), moves=True)
def reflection_pad(x: jax.Array, padding: Pads) -> jax.Array:
    """Mirrored at the edges, which are not repeated."""
    return _extend(x, padding, "reflect")


@op(*(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)), moves=True)
def replication_pad(x: jax.Array, padding: Pads) -> jax.Array:
    """The edges repeated."""
    return _extend(x, padding, "replicate")


def _extend(x: jax.Array, pad: Pads, mode: str) -> jax.Array:
    """Continue every padded dimension from its own elements, the last one first."""
    for i in range(len(pad) // 2):
        axis = x.ndim - 1 - i
        left, right = pad[2 * i], pad[2 * i + 1]
        if mode == "replicate":
            left, right = _within(x.shape[axis], left, right)
        middle = lax.slice_in_dim(x, max(-left, 0), x.shape[axis] - max(-right, 0), axis=axis)
        if mode == "circular":
            x = middle  # what is cropped does not come back on the other side
        parts = [_margin(x, axis, left, mode, before=True)] if left > 0 else []
        parts.append(middle)
        if right > 0:
            parts.append(_margin(x, axis, right, mode, before=False))
        x = lax.concatenate(parts, axis) if len(parts) > 1 else parts[0]
    return x


def _within(size: int, left: int, right: int) -> tuple[int, int]:
    """Paddings that crop no more than there is: the rest goes from what the other side repeats."""
    over_left, over_right = max(-left - size, 0), max(-right - size, 0)
    return left + over_left - over_right, right + over_right - over_left


def _margin(x: jax.Array, axis: int, width: int, mode: str, *, before: bool) -> jax.Array:
    size = x.shape[axis]

    def part(start: int, stop: int) -> Any:
        return lax.slice_in_dim(x, start, stop, axis=axis)

    if mode == "circular":
        return part(size - width, size) if before else part(0, width)
    if mode == "reflect":
        mirrored = part(1, 1 + width) if before else part(size - 1 - width, size - 1)
        return lax.rev(mirrored, (axis,))
    edge = part(0, 1) if before else part(size - 1, size)
    shape = tuple(width if a == axis else n for a, n in enumerate(x.shape))
    return jnp.broadcast_to(edge, shape)
