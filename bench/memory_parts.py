"""What the memory of a step of this project consists of, beyond the started libraries.

The kernel says which pages are resident (``/proc/self/smaps``), glibc how much of its heaps is in
use (``malloc_info``), and the session what it holds on the device.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PARTS = (
    "regions on the device",
    "tensors of the model on the host",
    "temporary memory of the step",
    "objects of XLA and jax",
    "free pieces of heaps, and Python's objects",
    "mapped files and generated code",
)
"""What the peak of a step is divided into; free pieces are what the others leave of it."""

_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)$")
_HEAP = re.compile(r'<heap nr="\d+">.*?</heap>', re.DOTALL)
_FREE = re.compile(r'<total type="(?:fast|rest)" count="\d+" size="(\d+)"/>')
_SYSTEM = re.compile(r'<system type="current" size="(\d+)"/>')
_MAPPED = re.compile(r'<total type="mmap" count="\d+" size="(\d+)"/>')


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """The resident memory of this process at one time.

    Args:
        files: Bytes of mapped files: the code of libraries.
        generated: Bytes of code that was generated in this process.
        used: Bytes of the allocator that are in use.
        of_files: Addresses of mapped files: first, and the one behind the last.
    """

    files: int
    generated: int
    used: int
    of_files: tuple[tuple[int, int], ...]

    def on_file(self, address: int) -> bool:
        """Whether something lies in a mapped file."""
        return any(first <= address < end for first, end in self.of_files)


def resident_of(smaps: Iterable[str], used: int) -> Resident:
    """Add up the mappings of a process.

    Args:
        smaps: The lines of ``/proc/self/smaps``.
        used: Bytes of the allocator that are in use.

    Example:
        >>> lines = ["10-20 r-xp 0 0:0 7 /lib/x.so", "Rss: 8 kB", "30-40 rw-p 0 0:0 0", "Rss: 4 kB"]
        >>> now = resident_of(lines, 0)
        >>> now.files, now.generated, now.on_file(0x10), now.on_file(0x20)
        (8192, 0, True, False)
    """
    sizes = {"files": 0, "generated": 0}
    kind, of_files = "", []
    for line in smaps:
        mapping = _MAPPING.match(line)
        if mapping is not None:
            first, end, access, name = mapping.groups()
            kind = "files" if name.startswith("/") else "generated" if "x" in access else ""
            if kind == "files":
                of_files.append((int(first, 16), int(end, 16)))
        elif kind and line.startswith("Rss:"):
            sizes[kind] += 1024 * int(line.split()[1])
    return Resident(**sizes, used=used, of_files=tuple(of_files))


def used_bytes(info: str) -> int:
    """Bytes of glibc's allocator that are in use.

    Args:
        info: What ``malloc_info`` writes.

    Example:
        >>> used_bytes(
        ...     '<malloc><heap nr="0"><total type="rest" count="1" size="30"/>'
        ...     '<system type="current" size="100"/></heap>'
        ...     '<total type="mmap" count="1" size="8"/></malloc>'
        ... )
        78
    """
    heaps = _HEAP.findall(info)
    held = sum(int(n) for heap in heaps for n in _SYSTEM.findall(heap))
    free = sum(int(n) for heap in heaps for n in _FREE.findall(heap))
    return held - free + sum(map(int, _MAPPED.findall(info)))


def resident_now() -> Resident:
    """The resident memory of this process; on Linux with glibc alone."""
    return resident_of(Path("/proc/self/smaps").read_text().splitlines(), used_bytes(_info()))


def _info() -> str:
    libc = ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    info = ctypes.string_at(text.value or 0, size.value).decode()
    libc.free(text)
    return info


def parts_of(
    before: Resident,
    after: Resident,
    *,
    peak: int,
    held: int,
    temporary: int,
    tensors: Mapping[int, int],
) -> Mapping[str, int]:
    """Divide the peak of some steps.

    Args:
        before: With the libraries at work alone.
        after: After the steps.
        peak: Most bytes that were resident during the steps, beyond those before.
        held: Bytes that lie on the device.
        temporary: Bytes that the executable takes while it runs.
        tensors: Bytes of the model's tensors by their address; those on file are not counted.

    Returns:
        Bytes by name, in the order of ``PARTS``; they add up to the peak.
    """
    host = sum(size for address, size in tensors.items() if not after.on_file(address))
    objects = after.used - before.used - held - host
    code = after.files - before.files + after.generated - before.generated
    free = peak - held - host - temporary - objects - code
    return dict(zip(PARTS, (held, host, temporary, objects, free, code), strict=True))
