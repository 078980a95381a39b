"""Tensors across the border: torch on the host, numpy and jax on the device.

Only a tensor of one block of plain numbers in this memory can be read as it is.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from pef_schema.errors import quoted
from samba.errors import ArgumentError

_TORCH_BFLOAT16 = torch.bfloat16  # found at once in each run
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a SambaTensor was made from, which holds its memory; else the tensor."""
    return tensor.__dict__.get("_underlying", tensor)


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """torch's own ``data`` of a tensor, whatever its class makes of it."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.data.__get__(tensor)  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor


def set_data(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Set torch's own ``data`` of a tensor, whatever its class makes of it."""
    with torch._C.DisableTorchFunctionSubclass():
        torch.Tensor.data.__set__(tensor, values)  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor


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
                found=f"dtype {host.dtype}",
                wanted="a dtype that the device has",
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
            found=f"a tensor of shape {tuple(tensor.shape)} on {tensor.device}"
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


_HINTS = {
    "sparse": "Pass tensor.to_dense().",
    "_mkldnn": "Pass tensor.to_dense().",
    "nested": "Pad it first: torch.nested.to_padded_tensor(tensor, 0.0).",
    "jagged": "Pad it first: torch.nested.to_padded_tensor(tensor, 0.0).",
    "quantized": "Pass tensor.dequantize().",
}


class UnreadableTensor(ArgumentError):
    """A tensor has no values in host memory that could be taken to the device."""


def foreign_layout(tensor: torch.Tensor) -> str:
    """What a tensor is if it is not one block of plain numbers; empty if it is.

    Example:
        >>> foreign_layout(torch.eye(2).to_sparse()), foreign_layout(torch.eye(2))
        ('sparse_coo', '')
    """
    with torch._C.DisableTorchFunctionSubclass():  # an empty SambaTensor can be asked too
        if tensor.layout is not torch.strided:
            return str(tensor.layout).removeprefix("torch.")
        if tensor.is_nested:
            return "nested"
        return "quantized" if tensor.is_quantized else ""


def lacks_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor reaches beyond its storage, as after ``storage.resize_(0)``.

    Torch does not look, and reads what lies there.

    Example:
        >>> freed = torch.ones(3)
        >>> _ = freed.untyped_storage().resize_(0)
        >>> lacks_memory(freed), lacks_memory(torch.ones(1).expand(3))
        (True, False)
    """
    if not tensor.numel():
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
    return tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size()


def readable(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A host tensor whose values lie in memory as they are, such as numpy can read.

    Args:
        tensor: What a script has passed.
        name: Its name, for the error.

    Returns:
        The tensor, or a copy of a view that torch conjugates or negates when it is read.

    Raises:
        UnreadableTensor: If it is sparse, nested or quantized, has no values (the meta device, fake
            tensors, freed memory), or lies on another device.

    Example:
        >>> readable(torch._neg_view(torch.ones(2)), "x")
        tensor([-1., -1.])
    """
    with torch._C.DisableTorchFunctionSubclass():
        try:
            foreign = foreign_layout(tensor)
            if foreign:
                hint = next((h for key, h in _HINTS.items() if foreign.startswith(key)), "")
                raise _unreadable(name, f"a {foreign} tensor", hint)
            if tensor.device.type != "cpu":
                hint = "It has no values." if tensor.is_meta else "Pass tensor.cpu()."
                raise _unreadable(name, f"a tensor on device {tensor.device}", hint)
            if _dispatch_of(type(tensor)) is not _dispatch_of(torch.Tensor):
                raise _unreadable(
                    name, type(tensor).__name__, "Its class keeps its values elsewhere."
                )
            if lacks_memory(tensor):
                raise _unreadable(
                    name, "a tensor whose memory was freed, possibly by storage.resize_()"
                )
            return tensor.resolve_conj().resolve_neg()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            first = str(error).split("\n", 1)[0]
            raise _unreadable(name, f"{type(tensor).__name__} ({first:.120})") from None


def _dispatch_of(kind: type) -> object:
    return getattr(kind, "__torch_dispatch__", None)


def _unreadable(name: str, found: str, hint: str = "") -> UnreadableTensor:
    return UnreadableTensor(
        where=f"tensor {quoted(name) if name else '(unnamed)'}",
        found=found,
        wanted="a dense tensor with its values in host memory",
        hint=hint,
    )
