"""Tensors across the border: torch on the host, numpy and jax on the device."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_SMALL_BYTES = 1 << 16
"""Below this a copy costs less than the 20-30 us of a DLPack exchange."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def view_as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a host tensor as a numpy array, without a copy.

    Args:
        tensor: A CPU tensor of any dtype the device has.

    Returns:
        An array that shares the tensor's memory; bfloat16 as ``ml_dtypes.bfloat16``.
    """
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach()
        if plain.dtype == torch.bfloat16:
            return plain.view(torch.int16).numpy().view(_BFLOAT16)
        return plain.numpy()


def copy_as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The contents of a host tensor as a new row-major array."""
    return np.array(view_as_numpy(tensor), order="C", copy=True)


def view_as_torch(array: np.ndarray) -> torch.Tensor:
    """A writable numpy array as a torch tensor, without a copy."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def fetch_as_torch(buffer: object) -> torch.Tensor:
    """An output buffer of the device as a torch tensor; waits until it is computed.

    Small buffers are copied, large ones handed over without a copy: the device
    never writes to a buffer it has handed out.

    Args:
        buffer: A jax array or a numpy array.

    Returns:
        A plain tensor.
    """
    if isinstance(buffer, np.ndarray):
        return view_as_torch(np.array(buffer, copy=True))
    if buffer.nbytes <= _SMALL_BYTES:  # type: ignore[attr-defined]  # a jax array
        return view_as_torch(np.array(buffer, copy=True))
    return torch.from_dlpack(buffer)
