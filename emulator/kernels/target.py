"""What a plan is lowered for, and which kernels it then has.

It runs on one processor, on several chips of the host, or on another platform. What is lowered asks
here for the native kernels, and for values that every chip has to have as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

import jax

from emulator.native.library import Library, leave_native_out, native_library
from emulator.processor import processor

_LOG = logging.getLogger(__name__)


class Target(Enum):
    """Where a plan runs."""

    PROCESSOR = "one processor"
    CHIPS = "several chips of the host, among which XLA divides the work"
    OTHER = "another platform"


_PRESENT: ContextVar[tuple[Target, jax.sharding.Sharding | None]] = ContextVar(
    "present", default=(Target.PROCESSOR, None)
)


def present_target() -> Target:
    """What is lowered for now: one processor unless :func:`lowered_for` says otherwise."""
    return _PRESENT.get()[0]


def target_of(platform: str, chips: int = 1) -> Target:
    """The target that chips are.

    Args:
        platform: As ``jax.Device`` names it.
        chips: How many run a plan.

    Example:
        >>> target_of("cpu").name, target_of("cpu", 2).name, target_of("cuda").name
        ('PROCESSOR', 'CHIPS', 'OTHER')
    """
    on_host = Target.PROCESSOR if chips == 1 else Target.CHIPS
    return on_host if platform == "cpu" else Target.OTHER


@contextmanager
def lowered_for(
    target: Target, on_each: jax.sharding.Sharding | None = None
) -> Generator[None, None, None]:
    """While active, this thread lowers for a target.

    Args:
        target: The target.
        on_each: Where XLA divides the work among chips: the sharding with which each chip has the
            whole of an array.

    Example:
        >>> with lowered_for(Target.CHIPS):
        ...     print(present_target().name)
        CHIPS
    """
    before = _PRESENT.set((target, on_each))
    try:
        yield
    finally:
        _PRESENT.reset(before)


def whole(x: jax.Array) -> jax.Array:
    """A value that each of several chips has as a whole, and so has its gradient.

    It is for operations that XLA does not divide rightly.

    Args:
        x: The value; of one chip alone it stays as it is.
    """
    on_each = _PRESENT.get()[1]
    return x if on_each is None else jax.lax.with_sharding_constraint(x, on_each)


def native_kernels() -> Library | None:
    """The native kernels, for a plan that can call them.

    Returns:
        None where there are none, and for several chips and other platforms: XLA divides what it
        knows, not calls into libraries.
    """
    return native_library() if present_target() is Target.PROCESSOR else None


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
    leave_native_out()
    return False
