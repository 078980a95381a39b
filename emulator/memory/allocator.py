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
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from pef_schema.program import Program

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGE = 64 << 20
"""Bytes of intermediate results from which on a program is large."""

_WORTH_IT = 0.5
"""Seconds of compiling from which on its garbage is given back, which takes some hundredths."""


def prepare_allocator(program: Program) -> None:
    """Set up the process's allocator for a program, before jax's threads start.

    Args:
        program: What is about to be loaded.
    """
    keep_freed_memory()
    if is_large(program):
        share_one_arena()


def is_large(program: Program) -> bool:
    """Whether sections leave so many bytes for each other that a plan needs large blocks."""
    return sum(r.nbytes for r in program.regions if r.role.is_transient) >= _LARGE


@functools.cache
def keep_freed_memory() -> bool:
    """Raise glibc's thresholds, once per process.

    Returns:
        Whether the allocator took the settings; False where it is not glibc.
    """
    return _set((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1))


@functools.cache
def share_one_arena() -> bool:
    """Let threads that start from now on take their memory from the main arena, for the process.

    Heaps of other arenas end at 64 MiB (``HEAP_MAX_SIZE`` in glibc's ``malloc/arena.c``). A larger
    block is mapped there at every allocation and unmapped when it is freed, whatever the
    thresholds are, and XLA's threads take all temporary memory of a plan as one block. Small
    programs gain nothing, and their threads would wait for each other.

    Returns:
        Whether the allocator took the setting; False where it is not glibc.
    """
    return _set((_M_ARENA_MAX, 1))


def _set(*settings: tuple[int, int]) -> bool:
    mallopt = _find("mallopt")
    return mallopt is not None and all(mallopt(key, value) == 1 for key, value in settings)


def _find(name: str) -> Callable[..., int] | None:
    """A function of glibc's allocator, None where there is none."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def give_back_free_memory() -> None:
    """Return free memory of the process to the kernel, where the allocator can."""
    trim = _find("malloc_trim")
    if trim is not None:
        trim(0)


@contextmanager
def garbage_given_back() -> Generator[None, None, None]:
    """Return free memory to the kernel after a body that took long and left much behind.

    XLA and LLVM free hundreds of megabytes when a plan is compiled, and the thresholds above would
    keep them in the process. No setting changes; memory that a step frees later stays mapped.

    Example:
        >>> with garbage_given_back():
        ...     pass
    """
    start = time.perf_counter()
    yield
    if time.perf_counter() - start >= _WORTH_IT:
        give_back_free_memory()
