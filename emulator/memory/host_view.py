"""Device memory as the host sees it, where both are the same."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from emulator.errors import DeviceError
from emulator.start import HOST_PLATFORMS

if TYPE_CHECKING:
    import jax


class NotHostMemory(DeviceError):
    """The host was to write an array that lies in a device's own memory."""

    def __init__(self, *, platform: str, shape: tuple[int, ...]) -> None:
        self.platform, self.shape = platform, shape
        super().__init__(
            f"an array of shape {list(shape)} lies in the memory of a {platform} device, or of "
            "several, expected one in host memory. Copy it to the host, change the copy, and put "
            "it back."
        )


def is_host_memory(array: jax.Array) -> bool:
    """Whether an array lies in one piece where the host can write it.

    Example:
        >>> import jax
        >>> is_host_memory(jax.device_put(1.0, jax.devices("cpu")[0]))
        True
    """
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform in HOST_PLATFORMS


def writable_view(array: jax.Array) -> np.ndarray:
    """Return the memory of a device array that the host can reach, once it is computed.

    jax takes its arrays for unchanging. The caller must be the only one who holds this one, and
    drop the view before the array is donated.

    Args:
        array: A flat array on a device whose memory is the host's, see :func:`is_host_memory`.

    Returns:
        The array's own memory.

    Raises:
        NotHostMemory: If its memory is not the host's.
    """
    if not is_host_memory(array):
        platform = next(iter(array.devices())).platform
        raise NotHostMemory(platform=platform, shape=array.shape)
    array.block_until_ready()
    if array.size == 0:
        return np.empty(0, array.dtype)
    memory = (ctypes.c_char * array.nbytes).from_address(array.unsafe_buffer_pointer())
    # The view keeps the array alive: numpy holds on to the ctypes object, and that to the array.
    memory._owner = array  # pyright: ignore[reportAttributeAccessIssue]  # ctypes objects take attributes
    return np.frombuffer(memoryview(memory), dtype=array.dtype)
