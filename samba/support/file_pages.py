"""Memory whose bytes a temporary file holds until somebody asks for them.

The pages of a block are replaced by a private mapping of a file without a name that holds the same
bytes, at the same addresses. Who reads the block gets its bytes from the file, page by page; who
writes it gets a page of its own, as with any memory: pointers, views, locks and forked processes
notice nothing. What is not surely safe is left as it is: ``docs/decisions/0013-unread-weights.md``.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, compress, starmap
from operator import attrgetter, not_
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Block", "move_to_file"]

SMALLEST = 128 << 10
"""Bytes of a block from which on it is worth two entries in the kernel's table of mappings."""

MOST_BLOCKS = 4096
"""Blocks of a call, the largest ones: the kernel allows a process 65,530 mappings by default."""

PART = 64 << 20
"""Bytes of a file at most: disk space is free again when all blocks of a file are."""

SECONDS = 1.0
"""Time from which on a call begins no further file, as a slow disk would make it wait."""

LEFT_FREE = 1 << 30
"""Bytes of a disk that are left to others."""

_DISKS = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # xfs
        0x9123683E,  # btrfs
        0xF2F52010,  # f2fs
        0x794C7630,  # overlayfs
    }
)
"""File systems on a disk of this machine, by their magic numbers in ``linux/magic.h``.

Tmpfs is memory, and a file on a network may be out of reach when its bytes are asked for."""

_IN_USE, _MAPPED, _FLAGS = 1, 2, 7
_HEADER = struct.Struct("=QQ")
"""What lies before a block of glibc's: bytes of the block before it, and its own with flags."""

_BLOCK_FIELDS = 2 * 8
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of memory.

    Args:
        start: Its address.
        nbytes: Its length in bytes.
    """

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.start + self.nbytes

    def pages(self) -> Block:
        """The whole pages in it."""
        size = mmap.PAGESIZE
        first = -(-self.start // size) * size
        return Block(start=first, nbytes=max(self.end // size * size - first, 0))


def move_to_file(blocks: Sequence[Block], *, seconds: float = SECONDS) -> int:
    """Replace memory by mappings of temporary files that hold the same bytes.

    Only blocks that are whole allocations of glibc's are, and only while all other Python threads
    wait for locks, no memory of the process is locked, and a disk of this machine has room. The
    caller keeps the blocks allocated.

    Args:
        blocks: Blocks, none of which overlaps another.
        seconds: Time from which on no further file is begun.

    Returns:
        The bytes that were replaced.
    """
    deadline = time.monotonic() + seconds
    moved = 0
    try:
        if not _possible():
            return 0
        folder = _folder()
        if folder is None:
            return 0
        movable = _movable(blocks)
        for part in _parts(movable):
            if time.monotonic() > deadline:
                break
            moved += _move(part, folder)
    except OSError:  # no room, a limit, a file system that cannot: memory stays as it is
        pass
    return moved


# -- what may be moved ------------------------------------------------------------


def _possible() -> bool:
    """Whether nobody but the caller can write now, and no memory is in a device's hands."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    if not _others_wait() or not _malloc_is_glibc():
        return False
    status = Path("/proc/self/status").read_text()
    return all(_kilobytes(field, status) == 0 for field in ("VmLck", "VmPin"))


_frames = sys._current_frames
_code_of = attrgetter("f_code")


def _waiting() -> frozenset[Any]:
    """Code that waits for a lock, and that of this module: who is there writes no memory.

    Any other thread may be in a function of torch's, say, which writes without the GIL.
    """
    waits = (threading.Condition.wait, getattr(threading.Thread, "_wait_for_tstate_lock", None))
    ours = (_others_wait, _exchange)
    return frozenset(f.__code__ for f in (*waits, *ours) if f is not None)


def _others_wait() -> bool:
    """Whether all other Python threads wait for locks."""
    return _waiting().issuperset(map(_code_of, _frames().values()))


def _kilobytes(field: str, status: str) -> int:
    found = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(found[0].split()[1]) if found else -1


@cache
def _malloc_is_glibc() -> bool:
    """Whether the process allocates by glibc, which takes no memory that it was given for zeros."""
    program, glibc = ctypes.CDLL(None), _glibc()
    return glibc is not None and _address(program.malloc) == _address(glibc.malloc)


def _glibc() -> Any:
    try:
        library = ctypes.PyDLL("libc.so.6", use_errno=True)
        library.gnu_get_libc_version  # noqa: B018  # AttributeError: it is another library
    except (OSError, AttributeError):
        return None
    return library


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


_OURS: set[tuple[str, str]] = set()
"""Device and inode of the files of this process."""


def _spans() -> list[Block]:
    """Where the process has private memory without a file, or with one of this module's."""
    found: list[Block] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, access, _, device, inode, *_ = line.split(maxsplit=5)
        if access != "rw-p" or (inode != "0" and (device, inode) not in _OURS):
            continue
        start, end = (int(text, 16) for text in place.split("-"))
        if found and found[-1].end == start:
            start = found.pop().start
        found.append(Block(start=start, nbytes=end - start))
    return found


def _movable(blocks: Sequence[Block]) -> list[Block]:
    """The whole pages in those blocks that are allocations of glibc's, the largest first."""
    spans = _spans()
    starts = [span.start for span in spans]
    found = []
    for block in blocks:
        pages = block.pages()
        if pages.nbytes < SMALLEST:
            continue
        place = bisect_right(starts, block.start - _BLOCK_FIELDS) - 1
        if (
            place >= 0
            and block.end <= spans[place].end
            and _is_allocation(block, spans[place])
            and _in_memory(pages) >= SMALLEST
        ):
            found.append(pages)
    return sorted(found, key=lambda pages: -pages.nbytes)[:MOST_BLOCKS]


def _is_allocation(block: Block, span: Block) -> bool:
    """Whether a block is what glibc's malloc has returned, by the fields that free() checks.

    Args:
        block: The block; its first byte lies in the span, as do the 16 before it.
        span: Private memory around it.
    """
    before, size = _HEADER.unpack(ctypes.string_at(block.start - _BLOCK_FIELDS, _BLOCK_FIELDS))
    size, flags = size & ~_FLAGS, size & _FLAGS
    start = block.start - _BLOCK_FIELDS
    end = start + size
    if size < block.nbytes + 8 or end > span.end:
        return False
    if flags == _MAPPED:  # a mapping of its own; what lies before it is left out by alignment
        first = start - before
        return first >= span.start and not first % mmap.PAGESIZE and not end % mmap.PAGESIZE
    if flags & ~_IN_USE or end + _BLOCK_FIELDS > span.end:
        return False  # of a thread's own heap, which ends in memory that may come back as zeros
    _, following = _HEADER.unpack(ctypes.string_at(end, _BLOCK_FIELDS))
    return bool(following & _IN_USE)


def _in_memory(pages: Block) -> int:
    """Bytes of whole pages that are in memory and in no file, by ``/proc/self/pagemap``."""
    size = mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb", buffering=0) as table:
        entries = os.pread(table.fileno(), pages.nbytes // size * 8, pages.start // size * 8)
    bits = np.frombuffer(entries, np.uint64) >> np.uint64(61)  # present, swapped, of a file
    return size * int(np.isin(bits, (2, 4)).sum())


# -- moving -----------------------------------------------------------------------


def _folder() -> str | None:
    """A folder for temporary files on a disk of this machine."""
    for folder in dict.fromkeys((tempfile.gettempdir(), "/var/tmp")):
        try:
            if _file_system(folder) in _DISKS:
                return folder
        except OSError:
            continue
    return None


def _file_system(folder: str) -> int:
    """The magic number of a folder's file system, which ``os.statvfs`` leaves out."""
    answer = (ctypes.c_long * 32)()
    if _glibc().statfs(os.fsencode(folder), answer):
        raise OSError(ctypes.get_errno(), "statfs", folder)
    return answer[0]


def _parts(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks together up to the size of a file, larger ones in pieces."""
    part: list[Block] = []
    room = PART
    for block in blocks:
        start = block.start
        while start < block.end:
            piece = Block(start=start, nbytes=min(block.end - start, room))
            part.append(piece)
            start, room = piece.end, room - piece.nbytes
            if not room:
                yield part
                part, room = [], PART
    if part:
        yield part


def _move(part: Sequence[Block], folder: str) -> int:
    """Replace blocks that fit a file by a mapping of one."""
    total = sum(block.nbytes for block in part)
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < total + LEFT_FREE:
        return 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as nameless:
        file = nameless.fileno()
        os.posix_fallocate(file, 0, total)
        for block in part:
            _write(file, block)
        os.fdatasync(file)  # what a disk could not take shows now
        status = os.fstat(file)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        _OURS.add((device, str(status.st_ino)))
        return _exchange(part, file, total)


def _write(file: int, block: Block) -> None:
    memory = memoryview((ctypes.c_char * block.nbytes).from_address(block.start)).cast("B")
    done = 0
    while done < block.nbytes:
        done += os.write(file, memory[done:])


def _exchange(part: Sequence[Block], file: int, total: int) -> int:
    """Put the file in the place of those blocks that still hold what it holds.

    One call of C functions sees that all other threads wait, compares a block, and replaces it;
    neither another Python thread nor the handler of a signal comes between.
    """
    libc = _glibc()
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, size)
    libc.memcmp.argtypes = (pointer, pointer, size)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    copy = libc.mmap(None, total, access, mmap.MAP_PRIVATE, file, 0)
    if copy == _FAILED:
        return 0
    offsets = (0, *accumulate(block.nbytes for block in part))
    placed = list(zip(part, offsets, strict=False))
    pairs = [(block.start, copy + offset, block.nbytes) for block, offset in placed]
    calls = [
        (block.start, block.nbytes, access, mmap.MAP_PRIVATE | _MAP_FIXED, file, offset)
        for block, offset in placed
    ]
    same = compress(calls, map(not_, starmap(libc.memcmp, pairs)))
    codes = map(partial(map, _code_of), map(dict.values, starmap(_frames, ((),))))
    allowed = map(_waiting().issuperset, codes)
    collects = gc.isenabled()
    gc.disable()  # finalizers would be Python code
    try:
        results = list(starmap(libc.mmap, chain.from_iterable(compress((same,), allowed))))
    finally:
        if collects:
            gc.enable()
        libc.munmap(copy, total)
    if _FAILED in results:
        for block, offset in placed:
            _mend(libc, block, file, offset)
    starts = set(results)
    return sum(block.nbytes for block in part if block.start in starts)


def _mend(libc: Any, block: Block, file: int, offset: int) -> None:
    """Give a block memory again if the kernel has unmapped it and then could not map the file."""
    pages = (ctypes.c_ubyte * (block.nbytes // mmap.PAGESIZE))()
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    if libc.mincore(block.start, block.nbytes, pages) == 0:
        return  # it is there, as before or as it shall be
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if libc.mmap(block.start, block.nbytes, access, flags, -1, 0) == _FAILED:
        raise MemoryError(f"{block.nbytes} bytes of host memory at {block.start:#x} are gone")
    memory = memoryview((ctypes.c_char * block.nbytes).from_address(block.start)).cast("B")
    done = 0
    while done < block.nbytes:
        done += os.preadv(file, [memory[done:]], offset + done)
