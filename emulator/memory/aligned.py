"""Copies of arrays that XLA takes as they lie."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64
"""XLA uses host memory as its own if it starts at a multiple of this, and copies it otherwise."""

LEAST_ALIGNED = 512 << 10
"""From so many bytes on, a second copy takes longer than finding an aligned place."""


def copy_aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy at an address that XLA takes without copying it again.

    Args:
        array: The array.

    Example:
        >>> copy = copy_aligned(np.arange(6.0).reshape(2, 3).T)
        >>> copy.ctypes.data % ALIGNMENT, copy.shape, copy[2].tolist(), copy.flags.c_contiguous
        (0, (3, 2), [2.0, 5.0], True)
    """
    block = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -block.ctypes.data % ALIGNMENT
    copy = block[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
