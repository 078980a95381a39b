"""Files that outlive the process, in the user's cache folder: executables and remembered traces.

Nobody but the user can write there, and nothing that goes wrong with it is an error: what cannot be
kept is made again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import sys
import tempfile
import time
from pathlib import Path

from emulator.handler_errors import raise_error_of_handler

_LOG = logging.getLogger(__name__)

CACHE_VARIABLE = "EMULATOR_CACHE"
"""Environment variable with the folder for what is kept; 0 for none."""


def kept_files(kind: str, *, limit: int) -> KeptFiles | None:
    """Where one kind of thing is kept.

    Args:
        kind: Name of the folder for it.
        limit: Most bytes of all its files together.

    Returns:
        The files; None where nothing is kept, as ``EMULATOR_CACHE`` or the lack of a home says.
    """
    setting = os.environ.get(CACHE_VARIABLE, "").strip()
    if setting == "0":
        return None
    folder = Path(setting) if setting else _users_folder()
    return None if folder is None else _files_in(folder / kind, limit)


@functools.lru_cache(maxsize=8)
def _files_in(folder: Path, limit: int) -> KeptFiles:
    return KeptFiles(folder, limit=limit)


def _users_folder() -> Path | None:
    """The folder of this project in the user's cache directory; None where there is no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # what is relative is to be ignored, says the XDG specification
        try:
            home = Path.home()
        except RuntimeError:
            return None
        base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "sambaflow-emulator"


_MAGIC = b"sambaflow-emulator kept 1\n"
_DIGEST = hashlib.sha256().digest_size
_SUFFIX = ".kept"
_UNFINISHED = ".new"
_ABANDONED = 3600.0
"""Seconds after which a file that nobody finished is of a process that is gone."""


_told: set[tuple[Path, type[OSError]]] = set()
"""What was logged: the folder, and the kind of error that it gave."""


class KeptFiles:
    """Bytes by name, for this user alone.

    Nothing that goes wrong with the folder is an error: a file that cannot be read counts
    as missing, one that cannot be written is left out, and the first reason is logged: once for
    all kinds of files that lie side by side.

    Args:
        folder: Where the files lie; made when the first one is written.
        limit: Most bytes of all files together.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = KeptFiles(Path(folder) / "kept", limit=1000)
        ...     files.put("a", b"what took long")
        ...     files.get("a"), files.get("b")
        (b'what took long', None)
    """

    __slots__ = ("folder", "limit")

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def get(self, name: str) -> bytes | None:
        """What was put under a name; None if nothing whole lies there.

        Args:
            name: Letters and digits.

        Returns:
            The bytes, and the file counts as used now.
        """
        path = self.folder / (name + _SUFFIX)
        try:
            if not self._is_ours():
                return None
            with path.open("rb") as file:
                _check_owner(os.fstat(file.fileno()), path)
                content = file.read(self.limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise_error_of_handler(error)
            self._tell(f"cannot read {path.name}", error)
            return None
        head, data = content[: len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
        if head != _MAGIC + hashlib.sha256(data).digest():
            self.drop(name)
            return None
        with contextlib.suppress(OSError):  # on a disk that cannot be written, nothing goes either
            os.utime(path)
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name, in the place of what was there; all at once or not at all.

        Args:
            name: Letters and digits.
            data: The bytes; more than the limit are not kept.
        """
        size = len(_MAGIC) + _DIGEST + len(data)
        if size > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            self._make_room(size)
            self._write(self.folder / (name + _SUFFIX), data)
        except OSError as error:
            raise_error_of_handler(error)
            self._tell("cannot keep files", error)

    def drop(self, name: str) -> None:
        """Forget what lies under a name."""
        with contextlib.suppress(OSError):
            (self.folder / (name + _SUFFIX)).unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        handle, unfinished = tempfile.mkstemp(suffix=_UNFINISHED, dir=self.folder)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(data).digest())
                file.write(data)
            Path(unfinished).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(unfinished).unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> None:
        """Remove the least recently used until there are so many bytes below the limit."""
        files: list[tuple[float, int, Path]] = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                about = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX):
                    files.append((about.st_mtime, about.st_size, Path(entry.path)))
                old = time.time() - about.st_mtime > _ABANDONED
                if old and entry.name.endswith(_UNFINISHED):
                    Path(entry.path).unlink(missing_ok=True)
        total = size + sum(length for _, length, _ in files)
        for _, length, path in sorted(files):
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= length

    def _is_ours(self) -> bool:
        """Whether only this user can write there: executables that are read are run."""
        _check_owner(self.folder.stat(), self.folder)
        return True

    def _tell(self, what: str, error: OSError) -> None:
        reason = self.folder.parent, type(error)
        if reason not in _told:
            _told.add(reason)
            _LOG.warning("%s in %s: %s; continuing without it", what, self.folder, error)


def _check_owner(about: os.stat_result, path: Path) -> None:
    if not hasattr(os, "getuid"):
        return  # no such owners here: the user's profile is the user's
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{path.name} belongs to another user, or others may write it: chmod 700 prevents that"
        )
