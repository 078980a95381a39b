"""Weights of the host rest in a file while the device has its own.

After a load the device has a copy of every weight, and what the host's memory holds is seldom read
before ``to_cpu`` takes its place. So it is moved to a file without a name, mapped for this process
alone (``MAP_PRIVATE``): the kernel needs no memory for it until somebody reads it, and gives it the
same values then, also through C code. What is written there is this process's own, as before.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import tempfile
from collections.abc import Iterable
from io import BufferedRandom
from pathlib import Path

import torch

from emulator.held_signals import HELD
from samba.sambatensor import SambaTensor
from samba.tensor.host_use import replace
from samba.tensor.views import host_of

__all__ = ["SPILL_VARIABLE", "spill_weights"]

_LOG = logging.getLogger(__name__)

SPILL_VARIABLE = "SAMBA_SPILL"
"""Environment variable: 0 to keep weights in memory, or the folder for their file."""

_LEAST_TENSOR = 64 << 10
"""Bytes from which on a tensor is worth pages of its own."""

_LEAST_ALL = 4 << 20
"""Bytes of all of them from which on a file is worth it."""

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems that keep files in memory."""


def spill_weights(tensors: Iterable[torch.Tensor]) -> int:
    """Move the values of host tensors to a file, from where they are read when they are asked for.

    The tensors stay the same objects with the same values, strides and place in autograd. One
    whose memory something else shares (a view, an alias, an array) keeps its memory, and so do all
    of them where there is no room on a disk.

    Args:
        tensors: Host tensors with a copy on the device.

    Returns:
        Bytes of memory that were freed.
    """
    wanted = os.environ.get(SPILL_VARIABLE, "").strip()
    if wanted == "0":
        return 0
    with torch._C.DisableTorchFunctionSubclass():
        chosen = [t for t in {id(t): t for t in tensors}.values() if _can_rest(t)]
        total = sum(_room(host_of(t)) for t in chosen)
        if total < _LEAST_ALL:
            return 0
        try:
            mapped = _mapped(chosen, total, _folder(wanted))
        except OSError as error:
            asked = logging.WARNING if wanted else logging.INFO
            _LOG.log(asked, "%s: weights stay in memory: %s", SPILL_VARIABLE, error)
            return 0
        start = 0
        with HELD:  # a tensor and the one that it was made from change together
            for tensor in chosen:
                host = host_of(tensor)
                count = host.numel()
                values = torch.frombuffer(mapped, dtype=host.dtype, count=count, offset=start)
                start += _room(host)
                replace(tensor, values.as_strided(host.shape, host.stride()))
    _LOG.info("%d bytes of weights are kept in a file", total)
    return total


def _can_rest(tensor: torch.Tensor) -> bool:
    """Whether a tensor is large, lies in memory without gaps, and nobody else has that memory."""
    host = host_of(tensor)
    if isinstance(tensor, SambaTensor) and not tensor.has_data:
        return False
    if host.device.type != "cpu" or host.layout is not torch.strided or host.is_inference():
        return False
    storage = host.untyped_storage()
    if host is not tensor and tensor.untyped_storage().data_ptr() != storage.data_ptr():
        return False
    size = host.numel() * host.element_size()
    if size < _LEAST_TENSOR or storage.nbytes() != size or storage.is_shared():
        return False
    del storage
    uses, references = _holders(host)
    own_uses, own_references = _holders(torch.empty(1))
    return uses == own_uses + (host is not tensor) and references == own_references


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    """How many tensors have a tensor's storage, and how many variables in Python, this one's too.

    The figures depend on torch's version: they are compared with those of a tensor of one's own.
    """
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def _room(host: torch.Tensor) -> int:
    """Bytes of a tensor's place in the file: whole pages."""
    size = host.numel() * host.element_size()
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _mapped(tensors: list[torch.Tensor], total: int, folder: Path) -> mmap.mmap:
    """A mapping of a file with the bytes of some tensors, each at the start of a page."""
    with tempfile.TemporaryFile(prefix="sambaflow-weights-", dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, total)  # or a full disk would show on reading
        else:
            file.truncate(total)
        start = 0
        for tensor in tensors:
            host = host_of(tensor)
            file.seek(start)
            _write(file, host)
            start += _room(host)
        file.flush()
        return mmap.mmap(file.fileno(), total, access=mmap.ACCESS_COPY)


def _write(file: BufferedRandom, host: torch.Tensor) -> None:
    storage = host.untyped_storage()
    file.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data)


def _folder(wanted: str) -> Path:
    """Where the file goes.

    Raises:
        OSError: If there is no folder on a disk.
    """
    # The second is where large files go by the standard for file systems; the first may be memory.
    candidates = [wanted] if wanted else [tempfile.gettempdir(), "/var/tmp"]
    for candidate in map(Path, candidates):
        if candidate.is_dir() and _file_system(candidate) not in _IN_MEMORY:
            return candidate
    raise OSError(f"{' and '.join(candidates)}: no folder on a disk")


def _file_system(folder: Path) -> str:
    """The type of a folder's file system; empty where the kernel does not list them."""
    try:
        number = folder.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in lines:
        fields = line.split()
        if len(fields) > 6 and fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return ""
