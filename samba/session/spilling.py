"""Weights of the host rest in a file while the device has its own.

After a load the device has a copy of every weight, and what the host's memory holds is seldom read
before ``to_cpu`` takes its place. So it is moved to a file without a name, mapped for this process
alone (``MAP_PRIVATE``): the kernel needs no memory for it until somebody reads it, and gives it the
same values then, also through C code. What is written there is this process's own, as before.

The kernel takes about a second for half a gigabyte. A thread writes the file while the PEF is read
and the model is compared with it, which mostly uses one core.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from emulator.held_signals import HELD
from samba.sambatensor import SambaTensor
from samba.tensor.host_use import replace, version_of
from samba.tensor.views import host_of

_LOG = logging.getLogger(__name__)

SPILL_VARIABLE = "SAMBA_SPILL"
"""Environment variable: 0 to keep weights in memory, or the folder for their file."""

_LEAST_TENSOR = 64 << 10
"""Bytes from which on a tensor is worth pages of its own."""

_LEAST_ALL = 4 << 20
"""Bytes of all of them from which on a file is worth it."""

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems that keep files in memory."""


class Spill:
    """A context in which the values of host tensors are written to a file, and may move there.

    A thread writes them from the start. Nobody else may write them until :meth:`take`.

    Args:
        tensors: Host tensors. Those that are small, and those whose memory something else shares
            (a view, an alias, an array), are left out; so are all of them where there is no room
            on a disk.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(4))
        >>> with Spill([weight]) as spill:
        ...     spill.take([weight])  # too small to be worth a file
        0
    """

    __slots__ = ("_error", "_folder", "_mapped", "_places", "_stopped", "_thread", "_total")

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._folder = os.environ.get(SPILL_VARIABLE, "").strip()
        self._places: dict[int, _Place] = {}
        self._mapped: mmap.mmap | None = None
        self._error: OSError | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._total = 0
        if self._folder == "0":
            return
        with torch._C.DisableTorchFunctionSubclass():
            values: list[tuple[int, memoryview]] = []
            for tensor in {id(t): t for t in tensors}.values():
                if _can_rest(tensor):
                    place = _Place(tensor=tensor, start=self._total, version=version_of(tensor))
                    self._places[id(tensor)] = place
                    self._total += _room(host_of(tensor))
            if self._total < _LEAST_ALL:
                self._places = {}
                return
            for place in self._places.values():
                storage = host_of(place.tensor).untyped_storage()
                array = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
                values.append((place.start, array.data))
        self._thread = threading.Thread(target=self._write, args=(values,), name="samba-spill")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        self._wait()
        self._places = {}

    @property
    def has_begun(self) -> bool:
        """Whether there is anything that is written."""
        return bool(self._places)

    def take(self, tensors: Iterable[torch.Tensor]) -> int:
        """Move tensors to the file, from where their values are read when they are asked for.

        They stay the same objects with the same values, strides and place in autograd. Those that
        were written since, or whose memory something else shares by now, stay in memory.

        Args:
            tensors: Which of those that are written; others are left alone.

        Returns:
            Bytes of memory that were freed.
        """
        self._wait()
        if self._mapped is None:
            if self._error is not None:
                level = logging.WARNING if self._folder else logging.INFO
                _LOG.log(level, "%s: weights stay in memory: %s", SPILL_VARIABLE, self._error)
            return 0
        freed = 0
        # A tensor and the one that it was made from change together.
        with torch._C.DisableTorchFunctionSubclass(), HELD:
            for tensor in tensors:
                place = self._places.pop(id(tensor), None)
                if place is None or place.version != version_of(tensor) or not _can_rest(tensor):
                    continue
                host = host_of(tensor)
                values = torch.frombuffer(
                    self._mapped, dtype=host.dtype, count=host.numel(), offset=place.start
                )
                freed += _room(host)
                replace(tensor, values.as_strided(host.shape, host.stride()))
        _LOG.info("%d bytes of weights are kept in a file", freed)
        return freed

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, values: list[tuple[int, memoryview]]) -> None:
        try:
            folder = _folder(self._folder)
            with tempfile.TemporaryFile(prefix="sambaflow-weights-", dir=folder) as file:
                if hasattr(os, "posix_fallocate"):  # or a full disk would show on reading
                    os.posix_fallocate(file.fileno(), 0, self._total)
                else:
                    file.truncate(self._total)
                while values and not self._stopped:  # a view that is left would count as a sharer
                    start, data = values.pop()
                    file.seek(start)
                    file.write(data)
                    del data
                file.flush()
                if not values:
                    self._mapped = mmap.mmap(file.fileno(), self._total, access=mmap.ACCESS_COPY)
        except OSError as error:
            self._error = error
        finally:
            values.clear()


def spill_weights(tensors: Iterable[torch.Tensor]) -> int:
    """Move the values of host tensors to a file; takes as long as writing them.

    Args:
        tensors: Host tensors with a copy on the device, as for :class:`Spill`.

    Returns:
        Bytes of memory that were freed.
    """
    tensors = list(tensors)
    with Spill(tensors) as spill:
        return spill.take(tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a tensor's values are in the file.

    Args:
        tensor: The tensor.
        start: Offset of the first byte; the start of a page.
        version: How often it had been written.
    """

    tensor: torch.Tensor
    start: int
    version: int


def _can_rest(tensor: torch.Tensor) -> bool:
    """Whether a tensor is large, lies in memory without gaps, and nobody else has that memory."""
    host = host_of(tensor)
    if isinstance(tensor, SambaTensor) and not tensor.has_data:
        return False
    if host.device.type != "cpu" or host.layout is not torch.strided or host.is_inference():
        return False
    if host.is_quantized or _dispatcher(type(host)) is not _dispatcher(torch.Tensor):
        return False  # what looks like its memory is not all of it, or none
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


def _dispatcher(kind: Any) -> object:
    """What runs operations on tensors of a type."""
    return kind.__torch_dispatch__


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


def _folder(path: str) -> Path:
    """Where the file goes.

    Raises:
        OSError: If there is no folder on a disk.
    """
    # The second is where large files go by the standard for file systems; the first may be memory.
    candidates = [path] if path else [tempfile.gettempdir(), "/var/tmp"]
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
    device = f"{os.major(number)}:{os.minor(number)}"
    for line in lines:
        fields = line.split()
        if len(fields) > 6 and fields[2] == device:
            return fields[fields.index("-") + 1]
    return ""
