"""Tensors as flat numpy buffers that share their memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from samba.errors import ArgumentError


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its subclass and its history, over the same memory.

    Args:
        tensor: Any tensor in host memory.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def as_flat_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous tensor as a flat buffer over the same memory, bfloat16 included.

    Args:
        tensor: A contiguous tensor in host memory.

    Raises:
        ArgumentError: If it is elsewhere, or not contiguous.

    Example:
        >>> as_flat_numpy(torch.ones(2, 2, dtype=torch.bfloat16)).dtype.name
        'bfloat16'
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ArgumentError(
            where="a tensor to communicate",
            found=f"one of shape {tuple(tensor.shape)} on {tensor.device}"
            + ("" if tensor.is_contiguous() else ", not contiguous"),
            wanted="a contiguous tensor in host memory",
        )
    flat = plain(tensor).view(-1)
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return flat.numpy()
