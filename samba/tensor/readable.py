"""Which host tensors have values that can be read: one block of plain numbers in this memory."""

from __future__ import annotations

import torch

from pef_schema.errors import quoted
from samba.errors import ArgumentError

__all__ = ["UnreadableTensor", "foreign_layout", "lacks_memory", "readable"]

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
                    name, f"a {type(tensor).__name__}", "Its class keeps its values elsewhere."
                )
            if lacks_memory(tensor):
                raise _unreadable(
                    name, "a tensor whose memory was freed, by storage.resize_() perhaps"
                )
            return tensor.resolve_conj().resolve_neg()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            first = str(error).split("\n", 1)[0]
            raise _unreadable(name, f"a {type(tensor).__name__} ({first:.120})") from None


def _dispatch_of(kind: type) -> object:
    return getattr(kind, "__torch_dispatch__", None)


def _unreadable(name: str, found: str, hint: str = "") -> UnreadableTensor:
    return UnreadableTensor(
        where=f"tensor {quoted(name) if name else '(unnamed)'}",
        found=found,
        wanted="a dense tensor with its values in host memory",
        hint=hint,
    )
