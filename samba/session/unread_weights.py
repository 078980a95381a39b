"""Weights on the host that nobody needs while the device trains: a file holds them until then.

Host and device memory of a weight are independent until they are synchronised, so that after a run
the host's has what it had before. Until a script asks for it, this takes no memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from samba.support.file_pages import Block, move_to_file
from samba.tensor.views import host_of

__all__ = ["KEEP_VARIABLE", "give_back"]

KEEP_VARIABLE = "SN_KEEP_HOST_WEIGHTS"
"""Environment variable: anything but "" and "0" leaves weights in memory."""


def give_back(tensors: Iterable[torch.Tensor]) -> int:
    """Let a temporary file hold the memory of host tensors until they are read or written.

    Nothing else changes: addresses, values, views and shared storages stay what they are.

    Args:
        tensors: Host tensors that were copied to the device.

    Returns:
        The bytes of memory that were given back; 0 where that is not surely safe.
    """
    if os.environ.get(KEEP_VARIABLE, "0") not in ("", "0"):
        return 0
    blocks: dict[int, Block] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            block = _memory_of(host_of(tensor))
            if block is not None:
                blocks.setdefault(block.start, block)
    return move_to_file(list(blocks.values())) if blocks else 0


def _memory_of(tensor: torch.Tensor) -> Block | None:
    """The storage of a tensor in plain host memory."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    try:
        if tensor.is_shared() or (torch.cuda.is_initialized() and tensor.is_pinned()):
            return None
        storage = tensor.untyped_storage()
        start, nbytes = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # fake and other wrapped tensors have no memory
        return None
    return Block(start=start, nbytes=nbytes) if start else None
