"""Python's search for garbage in cycles, which takes a sixth of the time of a trace or a lowering.

By default it looks at new objects after every 700 of them, and each time at all objects where many
are new. A process with torch and jax has hundreds of thousands, and nearly all of them stay.
"""

from __future__ import annotations

import gc

_SELDOM = (50_000, 20, 20)
"""Thresholds as ``gc.set_threshold`` takes them. The peak memory of a trace stays as it is."""


class SeldomCollected:
    """A context in which Python seldom looks for garbage in cycles, in all threads.

    Thresholds of the process that are 0 or higher stay as they are, and so do those that the body
    sets. Contexts may be nested, and may overlap in several threads.

    Example:
        >>> before = gc.get_threshold()
        >>> with SELDOM_COLLECTED:
        ...     while_active = gc.get_threshold()
        >>> while_active >= before, gc.get_threshold() == before
        (True, True)
    """

    __slots__ = ("_before", "_inside")

    def __init__(self) -> None:
        self._before = _SELDOM
        self._inside: list[None] = []

    def __enter__(self) -> None:
        # One bytecode appends and one pops, so that no lock is needed, which a fork could leave.
        self._inside.append(None)
        try:
            thresholds = gc.get_threshold()
            if 0 < thresholds[0] < _SELDOM[0]:
                self._before = thresholds
                gc.set_threshold(*_SELDOM)
        except BaseException:  # raised by the handler of a signal
            self._leave()
            raise

    def __exit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._inside.pop()
        if not self._inside and gc.get_threshold() == _SELDOM:
            gc.set_threshold(*self._before)


SELDOM_COLLECTED = SeldomCollected()
"""The context."""
