"""One line on a terminal: what the start of a script has taken its time for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from emulator.counters import Making, Source
from pef_schema.garbage import SELDOM_COLLECTED
from pef_schema.printable import say
from samba.support.layout import seconds_text
from samba.support.slot import Slot

_imports: Slot[float] = Slot()
"""Seconds that imports took, where they are known."""

_MADE: Mapping[Source, str] = {
    Source.CACHE: "read from the cache in {}",
    Source.COMPILED: "compiled in {}, which the cache keeps",
    Source.UNKEPT: "compiled in {}, which no cache can keep",
    Source.NO_CACHE: "compiled in {} without the cache",
}


def seconds_of_process() -> float | None:
    """How long this process has been there; None where the system does not say.

    Example:
        >>> seconds_of_process() != 0
        True
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # After the name, which is in brackets and may hold blanks: field 22 is the start.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def note_imports() -> None:
    """Take note that imports are done: the script has come to its command line."""
    _imports.value = seconds_of_process()


@contextmanager
def importing() -> Iterator[None]:
    """Count what is imported inside as imports, too."""
    start = time.perf_counter()
    with SELDOM_COLLECTED:
        yield
    if _imports.value is not None:
        _imports.value += time.perf_counter() - start


def plan_text(making: Making) -> str:
    """How the executable of a plan was made, and how long that took.

    Example:
        >>> plan_text(Making(source=Source.CACHE, lowering_seconds=0.5, xla_seconds=0.25))
        'read from the cache in 750 ms'
    """
    return _MADE[making.source].format(seconds_text(making.lowering_seconds + making.xla_seconds))


def tell_start(name: str, *parts: str) -> None:
    """Say on a terminal, and nowhere else, what a start has taken its time for.

    Args:
        name: The program.
        parts: What was done, each with its time.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return
    imports = [] if _imports.value is None else [f"imports {seconds_text(_imports.value)}"]
    say(f"{name}: {', '.join([*imports, *parts])}", file=sys.stderr)
