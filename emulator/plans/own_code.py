"""This project's code as this process runs it: a part of what every plan depends on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import emulator
import pef_schema

_PACKAGES = ("emulator", "pef_schema")


def _files_under(folder: str) -> Iterator[tuple[str, int, int]]:
    """Files with the facts by which Python itself tells whether one has changed."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files_under(entry.path)
        else:
            about = entry.stat()
            yield entry.path, about.st_mtime_ns, about.st_size


FILES = tuple(sorted([*_files_under(emulator.__path__[0]), *_files_under(pef_schema.__path__[0])]))
"""Path, time and size of each file when this process began: an edit meanwhile is for the next."""

_first_seen: dict[str, Mapping[str, Any]] = {}
"""What each module held when it was looked at first."""


def is_as_imported() -> bool:
    """Whether this project's modules hold what they held when they were first looked at.

    A script or a test may put a function or a number of its own in the place of one of ours. What
    is compiled then is not what others would compile.

    Example:
        >>> from emulator.plans import xla_options
        >>> is_as_imported()
        True
        >>> before, xla_options._CPU = xla_options._CPU, {}
        >>> is_as_imported()
        False
        >>> xla_options._CPU = before
        >>> is_as_imported()
        True
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES:
            continue
        content = getattr(module, "__dict__", {})  # Python puts None where an import is forbidden
        before = _first_seen.get(name)
        if before is None:
            _first_seen[name] = dict(content)
        elif any(content.get(key) is not value for key, value in before.items()):
            return False
    return True


is_as_imported()
