"""Replicas take the same kernels: each could have others, by its own processor."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emulator.native.library import leave_native_out, native_library
from emulator.processor import processor

__all__ = ["kernels_here", "take_the_same_kernels"]

_LOG = logging.getLogger(__name__)


def kernels_here() -> str:
    """What this process chooses kernels by, in a word: equal words, equal choices.

    Returns:
        The version of the native kernels, and the extension of the processor that oneDNN generates
        their code for.
    """
    library = native_library()
    if library is None:
        return "XLA alone"
    return f"{library.version} on {processor().best_isa}"


def take_the_same_kernels(said: Sequence[str]) -> bool:
    """Leave the native kernels out from now on where the processes of a job have different ones.

    Args:
        said: :func:`kernels_here` of each process.

    Returns:
        Whether they have the same; if not, that is a line in the log.

    Example:
        >>> take_the_same_kernels([kernels_here()] * 2)
        True
    """
    if len(set(said)) == 1:
        return True
    rows = "; ".join(f"rank {rank}: {what}" for rank, what in enumerate(said))
    _LOG.warning("replicas would use different kernels (%s), so all use XLA's own", rows)
    leave_native_out("replicas have different native kernels")
    return False
