"""Zeros for the first values of many buffers, from memory that the kernel need not provide."""

from __future__ import annotations

import math
import mmap

import numpy as np

_ALIGNMENT = 64
"""XLA uses host memory as its own if it starts at a multiple of this, and copies it otherwise."""


class Zeros:
    """Arrays of zeros that are views of one block, which nobody writes.

    Pages that are only read are all one page of the kernel. The views start where XLA copies them,
    so that a buffer made from one can be donated.

    Args:
        nbytes: Size of the largest array.

    Example:
        >>> zeros = Zeros(24)
        >>> zeros.view((2, 3), np.dtype("float32")).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    __slots__ = ("_block",)

    def __init__(self, nbytes: int) -> None:
        size = max(nbytes, 1) + _ALIGNMENT
        private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
        # A shared mapping, which is Python's default, gets pages of its own when it is read.
        self._block = mmap.mmap(-1, size, flags=private) if private else bytes(size)

    def view(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of zeros; nobody may write to it.

        Args:
            shape: Its shape.
            dtype: Its element type.
        """
        count = math.prod(shape)
        # Pages are aligned, so this is no multiple of the alignment.
        flat = np.frombuffer(self._block, dtype, count, offset=dtype.itemsize)
        view = flat.reshape(shape)
        view.flags.writeable = False
        return view


def array_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of an array.

    Args:
        shape: Its shape.
        dtype: Its element type.

    Example:
        >>> array_bytes((2, 3), np.dtype("int8"))
        6
    """
    return math.prod(shape) * dtype.itemsize
