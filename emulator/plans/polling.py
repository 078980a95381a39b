"""Waiting for small results without putting the thread to sleep.

A thread that sleeps until a result is there takes tens of microseconds to wake, more than a small
step computes. XLA:CPU's worker threads look for work a while before they sleep, too: a script
that comes back at once finds them awake.
"""

from __future__ import annotations

from typing import Protocol

_POLLS = 300
"""How often a result is asked for before the thread sleeps: about 50 microseconds."""
_PAUSE = 100
"""Results that are slept for once polling has failed: it takes a core from long steps."""


class Result(Protocol):
    """A result that can be asked whether it is computed, as a ``jax.Array`` can."""

    def is_ready(self) -> bool:
        """Whether it is computed."""
        ...


class Poller:
    """A waiter that asks for results again and again for a moment, as long as that succeeds.

    Example:
        >>> import jax.numpy as jnp
        >>> poller = Poller()
        >>> poller.wait_briefly(jnp.zeros(()))
    """

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = 0

    def wait_briefly(self, buffer: Result) -> None:
        """Wait until a buffer is computed, about 50 microseconds at most.

        Args:
            buffer: What is computed; it may not be ready afterwards.
        """
        if self._pause:
            self._pause -= 1
            return
        is_ready = buffer.is_ready
        for _ in range(_POLLS):
            if is_ready():
                return
        self._pause = _PAUSE
