"""Zeros for the first values of many buffers, from memory that the kernel need not provide."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable

import numpy as np

from emulator.memory.aligned import ALIGNMENT


class Zeros:
    """Arrays of zeros that are views of one block, which nobody writes.

    Pages that are only read are all one page of the kernel. The views start where XLA copies them,
    so that a buffer made from one can be donated.

    Args:
        forms: Shapes and element types of the arrays.

    Example:
        >>> zeros = Zeros([((2, 3), np.dtype("float32"))])
        >>> zeros.view((2, 3), np.dtype("float32")).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    __slots__ = ("_block",)

    def __init__(self, forms: Iterable[tuple[tuple[int, ...], np.dtype]]) -> None:
        largest = max((math.prod(shape) * dtype.itemsize for shape, dtype in forms), default=0)
        # A shared mapping, which is Python's default, gets pages of its own when it is read.
        self._block = mmap.mmap(-1, largest + ALIGNMENT, flags=mmap.MAP_PRIVATE)

    def view(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of zeros; nobody may write to it.

        Args:
            shape: Its shape.
            dtype: Its element type.
        """
        count = math.prod(shape)
        # A page starts at a multiple of the alignment, so that one element behind it is none.
        flat = np.frombuffer(self._block, dtype, count, offset=dtype.itemsize)
        view = flat.reshape(shape)
        view.flags.writeable = False
        return view
