"""Where code comes from: Python, this project, an installed distribution, or the user's own files.

Code of the first three is known by its version; the user's is known by its text alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from emulator.handler_errors import raise_error_of_handler

_OWN = ("samba", "emulator", "pef_schema", "sambaflow")
"""Packages of this project."""


@functools.cache
def _folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders of Python's own library, and folders that distributions are installed into."""
    paths = sysconfig.get_paths()
    python = {paths["stdlib"], paths["platstdlib"]}
    sites = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        sites.add(site.getusersitepackages())
    ends = [tuple(sorted(os.path.realpath(p) + os.sep for p in group)) for group in (python, sites)]
    return ends[0], ends[1]


@functools.cache
def _own_folders() -> tuple[str, ...]:
    folders: list[str] = []
    for name in _OWN:
        spec = importlib.util.find_spec(name)
        folders += [] if spec is None else spec.submodule_search_locations or []
    return tuple([os.path.realpath(folder) + os.sep for folder in folders])


@functools.cache
def is_users_file(path: str) -> bool:
    """Whether a source file is the user's: neither Python's nor this project's nor installed.

    Args:
        path: Its path, as code objects and modules name it; one in ``<...>`` names no file.

    Example:
        >>> is_users_file(os.__file__)
        False
    """
    if path.startswith("<"):
        return False
    real = os.path.realpath(path)
    python, sites = _folders()
    return not real.startswith((*sites, *python, *_own_folders()))


def _is_users_package(top: str) -> bool:
    """Whether a module that is part of no other is the user's, or unknown."""
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top in _OWN:
        return False
    path = _file_of(top)
    return path is None or is_users_file(path)


def _file_of(name: str) -> str | None:
    """The ``__file__`` of a loaded module, as its dict has it: asking may run code."""
    try:
        path = vars(sys.modules[name]).get("__file__")
    except (KeyError, TypeError):
        return None
    return path if isinstance(path, str) else None


def has_script() -> bool:
    """Whether the main module is a file, as it is not in a notebook or after ``python -c``."""
    return _file_of("__main__") is not None


def source_files() -> dict[str, str]:
    """The user's modules that are loaded: the path of each file with the name of its module.

    Example:
        >>> os.__file__ in source_files()
        False
    """
    packages: dict[str, list[str]] = {}
    for name in sorted(name for name in list(sys.modules) if isinstance(name, str)):
        packages.setdefault(name.partition(".")[0], []).append(name)
    users = [names for top, names in packages.items() if _is_users_package(top)]
    return {
        path: name
        for name in itertools.chain.from_iterable(users)
        if (path := _file_of(name)) is not None and is_users_file(path)
    }


def sources() -> dict[str, str] | None:
    """The user's modules that are loaded, by name, each with the SHA-256 of its file.

    Returns:
        None where the text of one is not available, as in a notebook or after ``python -c``.
    """
    if not has_script():
        return None
    result = {name: file_digest(path) for path, name in source_files().items()}
    return result if all(result.values()) else None


def file_digest(path: str) -> str:
    """The SHA-256 of a file in hexadecimal; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise_error_of_handler(error)
        return ""


def installed() -> list[str]:
    """Names and versions of all distributions that are installed, and Python's.

    They are those of the ``.dist-info`` folders, which no metadata has to be read for.
    """
    names = {
        entry.name
        for folder in _folders()[1]
        if os.path.isdir(folder)
        for entry in os.scandir(folder)
        if entry.name.endswith((".dist-info", ".egg-info"))
    }
    return [sys.version, *sorted(names)]


@functools.cache
def own_version() -> str:
    """What tells this version of the project from others: sizes and times of its own files."""
    state = hashlib.sha256()
    for folder in _own_folders():
        for path, about in sorted(_files_below(folder)):
            state.update(f"{path[len(folder) :]}\0{about}\n".encode())
    return state.hexdigest()


def _files_below(folder: str) -> Iterator[tuple[str, str]]:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                yield from _files_below(entry.path + os.sep)
        elif entry.name.endswith((".py", ".so", ".json")):
            about = entry.stat()
            yield entry.path, f"{about.st_size} {about.st_mtime_ns}"
