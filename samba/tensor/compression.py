"""MinMaxUInt8: a chunk of numbers as bytes between its minimum and its maximum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from samba.errors import ArgumentError
from samba.tensor.views import view_flat_as_numpy

METHODS = ("MinMaxUInt8",)
_HEADER = 32
"""Bytes before the codes: minimum and maximum as float32, then nothing."""


def _check(method: str | None) -> None:
    if method not in METHODS:
        raise ArgumentError(
            where="compression", found=repr(method), wanted=" or ".join(map(repr, METHODS))
        )


def compress(chunk: np.ndarray) -> np.ndarray:
    """Compress numbers to a byte each.

    With ``s = 255 / (max - min + 1e-7)`` and ``hi = rint(max * s)`` the code of ``x`` is
    ``min(rint(x * s), hi) - (hi - 255)``. A chunk with a NaN, with an infinite value or with
    a range that float32 does not hold comes back as NaN, so that nothing is hidden.

    Args:
        chunk: Flat array of floating point numbers.

    Returns:
        Bytes: a header of 32 with the minimum and the maximum, and the codes.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _compress(chunk.astype(np.float32))


def _compress(x: np.ndarray) -> np.ndarray:
    out = np.zeros(_HEADER + x.size, np.uint8)
    if not x.size:
        return out
    low, high = x.min(), x.max()
    scale, upper, lower = _scale(low, high)
    if not (np.isfinite(x).all() and np.isfinite(high - low) and np.isfinite(upper)):
        low = high = np.float32(np.nan)
    else:
        # Where max * s lies halfway between two numbers, a code can miss the bytes by one.
        codes = np.minimum(np.rint(x * scale), upper) - lower
        out[_HEADER:] = np.clip(codes, 0, 255).astype(np.uint8)
    out[:8] = np.array([low, high], np.float32).view(np.uint8)
    return out


def decompress(data: np.ndarray, out: np.ndarray) -> None:
    """Fill an array with the numbers that :func:`compress` made bytes of.

    Args:
        data: The bytes.
        out: Flat array of floating point numbers, of as many elements as were compressed.
    """
    low, high = data[:8].copy().view(np.float32)
    if np.isnan(high):
        out[:] = np.nan
        return
    scale, _, lower = _scale(low, high)
    out[:] = (data[_HEADER:].astype(np.float32) + lower) / scale


def _scale(low: np.float32, high: np.float32) -> tuple[np.float32, np.float32, np.float32]:
    scale = np.float32(255) / (high - low + np.float32(1e-7))
    upper = np.rint(high * scale)
    return scale, upper, upper - np.float32(255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Compressed chunks of a tensor.

    Args:
        method: How they are compressed.
        data: Bytes; the chunks one after the other.
    """

    method: str
    data: torch.Tensor


def _chunks(size: int, n_chunks: int) -> int:
    if n_chunks < 1 or size % n_chunks:
        raise ArgumentError(
            where="compression",
            found=f"{n_chunks} chunks of {size} elements",
            wanted="a number of chunks that divides the elements",
        )
    return size // n_chunks


def compress_tensor(
    tensor: torch.Tensor, method: str, n_chunks: int, target_chunk: int = -1
) -> Compressed:
    """Compress a tensor in equal chunks, each by itself.

    Args:
        tensor: The tensor.
        method: ``"MinMaxUInt8"``.
        n_chunks: How many chunks.
        target_chunk: The one chunk to compress; all if -1.
    """
    _check(method)
    flat = view_flat_as_numpy(tensor)
    each = _chunks(flat.size, n_chunks)
    if not -1 <= target_chunk < n_chunks:
        raise ArgumentError(
            where="compression",
            found=f"target_chunk {target_chunk} of {n_chunks} chunks",
            wanted="the number of a chunk from 0, or -1 for all of them",
        )
    rows = range(n_chunks) if target_chunk == -1 else [target_chunk]
    data = np.concatenate([compress(flat[r * each : (r + 1) * each]) for r in rows])
    return Compressed(method=method, data=torch.from_numpy(data))


def decompress_tensor(
    tensor: torch.Tensor, method: str, n_chunks: int, compressed: Compressed
) -> None:
    """Fill a tensor with what :func:`compress_tensor` made of all chunks of one like it.

    Args:
        tensor: The tensor to fill.
        method: ``"MinMaxUInt8"``.
        n_chunks: How many chunks.
        compressed: The chunks.
    """
    _check(method)
    flat = view_flat_as_numpy(tensor)
    each = _chunks(flat.size, n_chunks)
    data = view_flat_as_numpy(compressed.data)
    if data.size != n_chunks * (each + _HEADER):
        raise ArgumentError(
            where="decompression",
            found=f"{data.size} bytes",
            wanted=f"{n_chunks * (each + _HEADER)} for {n_chunks} chunks of {each} elements",
        )
    for row, part in enumerate(data.reshape(n_chunks, -1)):
        decompress(part, flat[row * each : (row + 1) * each])
