"""Device memory as the host sees it, where both are the same."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import jax


def writable_view(array: jax.Array) -> np.ndarray:
    """Return the memory of a device array that the host can reach, once it is computed.

    jax takes its arrays for unchanging. The caller must be the only one who holds this one, and
    drop the view before the array is donated.

    Args:
        array: A flat array on a device whose memory is the host's.

    Returns:
        The array's own memory.
    """
    array.block_until_ready()
    if array.size == 0:
        return np.empty(0, array.dtype)
    memory = (ctypes.c_char * array.nbytes).from_address(array.unsafe_buffer_pointer())
    # The view keeps the array alive: numpy holds on to the ctypes object, and that to the array.
    memory._owner = array  # pyright: ignore[reportAttributeAccessIssue]  # ctypes objects take attributes
    return np.frombuffer(memoryview(memory), dtype=array.dtype)
