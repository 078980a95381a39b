"""Lowerings: window functions. They are numbers that are known when a program is lowered."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from emulator.dtypes import TO_NUMPY
from emulator.ops._promote import DEFAULT_FLOAT
from emulator.ops.registry import op
from pef_schema.program import DType


def _places(length: int, periodic: bool) -> tuple[np.ndarray, int]:
    """Places of the entries, and the last place of a whole window."""
    return np.arange(length, dtype=np.float64), max(length - (not periodic), 1)


def _window(values: np.ndarray, dtype: DType | None) -> jax.Array:
    if len(values) == 1:
        values = np.ones(1)
    return jnp.asarray(values.astype(DEFAULT_FLOAT if dtype is None else TO_NUMPY[dtype]))


@op(
    *("aten.hamming_window.default", "aten.hamming_window.periodic"),
    *("aten.hamming_window.periodic_alpha", "aten.hamming_window.periodic_alpha_beta"),
    cheap=True,
    differentiable=False,
)
def hamming_window(
    length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DType | None = None,
) -> jax.Array:
    """``alpha - beta cos(2 pi n / N)``."""
    n, last = _places(length, periodic)
    return _window(alpha - beta * np.cos(2 * math.pi * n / last), dtype)


@op("aten.hann_window.default", "aten.hann_window.periodic", cheap=True, differentiable=False)
def hann_window(length: int, periodic: bool = True, *, dtype: DType | None = None) -> jax.Array:
    """``(1 - cos(2 pi n / N)) / 2``."""
    return hamming_window(length, periodic, 0.5, 0.5, dtype=dtype)


@op(
    *("aten.blackman_window.default", "aten.blackman_window.periodic"),
    cheap=True,
    differentiable=False,
)
def blackman_window(length: int, periodic: bool = True, *, dtype: DType | None = None) -> jax.Array:
    """``0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N)``."""
    n, last = _places(length, periodic)
    angle = 2 * math.pi * n / last
    return _window(0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle), dtype)


@op(
    *("aten.bartlett_window.default", "aten.bartlett_window.periodic"),
    cheap=True,
    differentiable=False,
)
def bartlett_window(length: int, periodic: bool = True, *, dtype: DType | None = None) -> jax.Array:
    """A triangle with zeros at both ends."""
    n, last = _places(length, periodic)
    return _window(1 - np.abs(2 * n / last - 1), dtype)


@op(
    *("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta"),
    cheap=True,
    differentiable=False,
)
def kaiser_window(
    length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None
) -> jax.Array:
    """``I0(beta sqrt(1 - (2 n / N - 1)^2)) / I0(beta)``."""
    n, last = _places(length, periodic)
    inside = np.sqrt(np.maximum(1 - (2 * n / last - 1) ** 2, 0))
    return _window(np.i0(beta * inside) / np.i0(beta), dtype)
