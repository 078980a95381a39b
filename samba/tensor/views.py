"""Tensors across the border: torch on the host, numpy and jax on the device."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from pef_schema.errors import quoted
from samba.errors import ArgumentError
from samba.tensor.readable import readable

_TORCH_BFLOAT16 = torch.bfloat16  # found at once in each run
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a SambaTensor was made from, which holds its memory; else the tensor."""
    return tensor.__dict__.get("_underlying", tensor)


def strides_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """Strides of a tensor in elements, and its place in its storage."""
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(tensor.stride()), int(tensor.storage_offset())


def view_as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a host tensor as a numpy array, without a copy.

    Args:
        tensor: A CPU tensor of any dtype the device has.

    Returns:
        An array that shares the tensor's memory; bfloat16 as ``ml_dtypes.bfloat16``.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return view_plainly(tensor)


def view_plainly(tensor: torch.Tensor) -> np.ndarray:
    """:func:`view_as_numpy` where torch's dispatch to subclasses is off already."""
    return view_host(host_of(tensor))


def view_host(tensor: torch.Tensor) -> np.ndarray:
    """:func:`view_plainly` of what :func:`host_of` has given."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.dtype is _TORCH_BFLOAT16:
        return plain.view(torch.int16).numpy().view(_BFLOAT16)
    return plain.numpy()


def read_as_numpy(tensor: torch.Tensor, name: str) -> np.ndarray:
    """The values of a host tensor as a numpy array, for reading only.

    Args:
        tensor: What a script has passed.
        name: Its name, for the error.

    Raises:
        UnreadableTensor: If it has no plain values in host memory.
    """
    with torch._C.DisableTorchFunctionSubclass():
        host = readable(host_of(tensor), name)
        try:
            return view_host(host)
        except TypeError:  # numpy and the device do not have its type
            raise ArgumentError(
                where=f"tensor {quoted(name) if name else '(unnamed)'}",
                found=f"one of {host.dtype}",
                wanted="a type that the device has",
                hint="Pass tensor.float().",
            ) from None


def view_flat_as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous host tensor as a flat numpy array, without a copy.

    Args:
        tensor: A contiguous tensor in host memory.

    Raises:
        ArgumentError: If it is elsewhere, or not contiguous.

    Example:
        >>> view_flat_as_numpy(torch.ones(2, 2, dtype=torch.bfloat16)).dtype.name
        'bfloat16'
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ArgumentError(
            where="a tensor to communicate",
            found=f"one of shape {tuple(tensor.shape)} on {tensor.device}"
            + ("" if tensor.is_contiguous() else ", not contiguous"),
            wanted="a contiguous tensor in host memory",
        )
    return view_as_numpy(view_detached(tensor).view(-1))


def view_detached(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor without its subclass and its history, over the same memory.

    Args:
        tensor: Any tensor in host memory.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return host_of(tensor).detach().as_subclass(torch.Tensor)


def copy_as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The contents of a host tensor as a new row-major array."""
    return view_as_numpy(tensor).copy()


def view_as_torch(array: np.ndarray) -> torch.Tensor:
    """A writable numpy array as a torch tensor, without a copy."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def copy_as_torch(buffer: object) -> torch.Tensor:
    """A buffer of the device as a new tensor; waits until it is computed.

    It is always a copy: the caller may write to it, and the device may reuse the buffer.

    Args:
        buffer: A jax array or a numpy array.

    Returns:
        A plain tensor that owns its memory.
    """
    return view_as_torch(np.array(buffer))
