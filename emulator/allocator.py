"""Keep freed memory mapped: fresh pages cost more than the arithmetic on them.

glibc returns large blocks to the kernel on every free, and each new block page
faults again: 8.6 ms instead of 1.0 ms for doubling 32 MB. The thresholds below
keep blocks of up to 1 GiB in the process.

The padding of heaps (``M_TOP_PAD``) stays as it is: it saves no faults beside these two, and
with a large one the heaps of XLA's threads grow by some hundred bytes in every run, without end.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@functools.cache
def keep_freed_memory() -> bool:
    """Raise glibc's thresholds, once per process.

    Returns:
        Whether the allocator took the settings; False where it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, 1 << 30),
        (_M_TRIM_THRESHOLD, (1 << 31) - 1),
    )
    return all(mallopt(option, value) == 1 for option, value in settings)
