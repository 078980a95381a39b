"""Faults that are put into a worker on purpose, to see that the harness finds each kind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from pef_schema import read
from pef_schema.verify_rules import Report


def _instead_of_verify(action: Callable[[], object]) -> Callable[[], None]:
    """A plant that runs when a file's meaning is to be checked."""

    def plant() -> None:
        real: Any = read.verify

        def verify(*args: Any, **keywords: Any) -> None:
            real(*args, **keywords)
            action()

        read.verify = verify

    return plant


def _blind() -> None:
    """The verifier no longer minds where an index points."""
    Report.index = lambda *_: None


def _foreign() -> None:
    raise KeyError("planted")


def _spin() -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        pass


PLANTS: dict[str, Callable[[], None]] = {
    "foreign": _instead_of_verify(_foreign),
    "hang": _instead_of_verify(_spin),
    "abort": _instead_of_verify(os.abort),
    "exit": _instead_of_verify(lambda: os._exit(0)),
    "memory": _instead_of_verify(lambda: bytearray(2**30)),
    "blind": _blind,
}
"""By name; each takes effect when it is called."""
