"""Replace a file as a whole: afterwards it is the old one or the new one, never a part.

The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed; then
the folder is flushed too. A file that describes another one is written together with it: both are
on the disk before either is renamed, and the old description is out of the way before what it
describes is replaced, so that at no moment one of them stands beside the other of another program.

A process killed halfway leaves its temporaries behind; the next writer of the same file removes
them. A writer holds a lock on its temporary, so that nobody else's work in progress is taken for a
leftover, whatever machine or process id it has.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pef_schema.errors import PefUnwritable

_CHUNK = 2**20
_STEM = 64
"""Characters of the file's name that its temporary's name repeats, so that it is never too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A file that is written, but not yet in its place; its descriptor holds the lock."""

    path: str
    temporary: str
    descriptor: int


def write_atomically(path: str, chunks: Iterable[bytes]) -> None:
    """Write the chunks to ``path``, replacing what is there; a device or a pipe is written to.

    A symbolic link at ``path`` is replaced, not followed; a file that is replaced leaves its mode
    to the new one.

    Args:
        path: The file.
        chunks: Its content, piece by piece.

    Raises:
        PefUnwritable: If anything fails; the old file, if any, is then untouched, unless the
            message says that the new one is in place.
        BrokenPipeError: If nobody reads the pipe any more.
    """
    if not is_special(path):
        return write_together(path, chunks, {})
    try:
        with os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
            file.writelines(chunks)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PefUnwritable(f"cannot write: {error.strerror}", path=path) from None


def is_special(path: str) -> bool:
    """Whether something other than a file or a folder has a name already: a device or a pipe.

    What lies in ``/dev`` itself is one, although ``/dev/stdout`` may lead to a file.
    """
    try:
        mode, folder = os.stat(path).st_mode, os.path.dirname(os.path.abspath(path))
    except (OSError, ValueError):
        return False
    return not stat.S_ISDIR(mode) and (folder == "/dev" or not stat.S_ISREG(mode))


def check_outputs(paths: Iterable[str | os.PathLike[str] | None]) -> None:
    """Refuse outputs that could not be written, before minutes are spent on what goes there.

    Args:
        paths: Where something is to be written; None where nothing is.

    Raises:
        PefUnwritable: If a folder is missing or closed, or a folder is in the way.

    Example:
        >>> check_outputs([None, "report.json"])
    """
    for output in paths:
        if output is None or is_special(path := os.fspath(output)):
            continue
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise PefUnwritable(
                f"there is no folder {folder}", path=path, hint="Create the folder first."
            )
        if os.path.isdir(path):
            raise PefUnwritable(
                "a folder of this name is in the way", path=path, hint="Choose another name."
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PefUnwritable(f"cannot write to the folder {folder}", path=path)


def write_together(
    path: str, chunks: Iterable[bytes], companions: Mapping[str, Iterable[bytes]]
) -> None:
    """Write a file and others that describe it, replacing what is there.

    Whatever happens, beside ``path`` there is a companion that was written with it, or none. A
    process that dies while it renames them may leave a file without its companions.

    Args:
        path: The file.
        chunks: Its content, piece by piece.
        companions: Contents of other files of the same folder by path.

    Raises:
        PefUnwritable: If anything fails; all old files are then untouched, unless the message says
            that the new one is in place.
    """
    try:
        folder = os.path.dirname(os.path.abspath(path))
    except OSError:
        raise PefUnwritable(
            "the working folder has been removed", path=path, hint="Change to another folder."
        ) from None
    drafts: list[_Draft] = []
    try:
        for name, content in ((path, chunks), *companions.items()):
            drafts.append(_draft(name, folder, content))
        _commit(drafts, folder)
    finally:
        for draft in drafts:
            if _is_pending(draft):
                with contextlib.suppress(OSError):
                    os.unlink(draft.temporary)
            # Everything is on the disk or of no use: closing can lose nothing.
            with contextlib.suppress(OSError):
                os.close(draft.descriptor)
    _flush_folder(path, folder)


def _draft(path: str, folder: str, chunks: Iterable[bytes]) -> _Draft:
    """Write a temporary file that only has to be renamed."""
    prefix = f".{os.path.basename(os.path.abspath(path))[:_STEM]}."
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_special(path):
            raise PefUnwritable("it is a device or a pipe", path=path, hint="Name a file.")
        _remove_leftovers(folder, prefix)
        descriptor, temporary = _create(folder, prefix)
        try:
            _keep_mode(path, descriptor)
            for chunk in chunks:
                _write(descriptor, chunk)
            os.fsync(descriptor)
        except BaseException:
            _discard(descriptor, temporary)
            raise
    except OSError as error:
        raise _unwritable(path, folder, error) from None
    except ValueError as error:
        raise PefUnwritable(f"{path!r} is not a path: {error}", path=path) from None
    return _Draft(path=path, temporary=temporary, descriptor=descriptor)


def _is_pending(draft: _Draft) -> bool:
    """Whether a draft is not in its place; asked of the disk, as signals may come in between."""
    return os.path.lexists(draft.temporary)


def _commit(drafts: Sequence[_Draft], folder: str) -> None:
    """Rename what has been written: old companions out of the way, the file, its companions."""
    main, *companions = drafts
    aside: dict[str, str] = {}
    try:
        for draft in companions:
            # A name that the next writer of the companion takes for a leftover.
            away = aside[draft.path] = f"{draft.temporary[: -len('.tmp')]}.old.tmp"
            with contextlib.suppress(FileNotFoundError):
                os.replace(draft.path, away)
        for draft in drafts:
            os.replace(draft.temporary, draft.path)
    except OSError as error:
        if _is_pending(main):
            raise _unwritable(main.path, folder, error) from None
        raise PefUnwritable(
            f"the new file is in place, but {companions[0].path} is not: {error.strerror}",
            path=main.path,
            hint="Check the disk, then write again.",
        ) from None
    finally:
        back = _is_pending(main)
        for path, away in aside.items():
            if os.path.lexists(away):
                with contextlib.suppress(OSError):
                    if back:
                        os.replace(away, path)
                    else:
                        os.unlink(away)


def _keep_mode(path: str, descriptor: int) -> None:
    """Give a new file the mode of the one that it will replace."""
    try:
        old = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(old.st_mode):
        mode = stat.S_IMODE(old.st_mode)
        if mode != stat.S_IMODE(os.stat(descriptor).st_mode):
            os.fchmod(descriptor, mode)


def _create(folder: str, prefix: str) -> tuple[int, str]:
    """Create and lock a temporary file."""
    while True:
        temporary = os.path.join(folder, f"{prefix}{os.getpid()}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            # Between creation and lock another writer may have taken it for a leftover: it then
            # holds the lock, or has removed the file.
            with contextlib.suppress(BlockingIOError):
                _lock(descriptor)
                if os.fstat(descriptor).st_nlink:
                    return descriptor, temporary
        except BaseException:
            _discard(descriptor, temporary)
            raise
        _discard(descriptor, temporary)


def _discard(descriptor: int, temporary: str) -> None:
    """Remove a temporary that will not be used."""
    with contextlib.suppress(OSError):
        os.unlink(temporary)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open file; return False where the file system knows no locks.

    Raises:
        BlockingIOError: If somebody else holds it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _remove_leftovers(folder: str, prefix: str) -> None:
    """Remove temporaries that no living writer has locked; failure is not a reason to stop."""
    names = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [e.name for e in entries if e.name.startswith(prefix) and e.name.endswith(".tmp")]
    for name in names:
        with contextlib.suppress(OSError):
            temporary = os.path.join(folder, name)
            descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor):
                    os.unlink(temporary)
            finally:
                os.close(descriptor)


def _write(descriptor: int, chunk: bytes) -> None:
    """Write all of a chunk, however little of it the system takes at a time."""
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view[:_CHUNK]) :]


def _flush_folder(path: str, folder: str) -> None:
    """Make the renaming itself durable."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some file systems cannot flush a folder, and a folder may be writable but not readable.
        if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            return
        raise PefUnwritable(
            f"the new file is in place, but may not outlast a power failure: {error.strerror}",
            path=path,
            hint="Check the disk, then write again.",
        ) from None


def _unwritable(path: str, folder: str, error: OSError) -> PefUnwritable:
    """Say what stood in the way."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOENT:
        return PefUnwritable(
            f"there is no folder {folder}", path=path, hint="Create the folder first."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PefUnwritable(f"cannot write to the folder {folder}: {reason}", path=path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PefUnwritable(
            f"{reason} in the folder {folder}",
            path=path,
            hint="Free some space or choose another output folder.",
        )
    if error.errno == errno.EISDIR:
        return PefUnwritable(
            "a folder of this name is in the way", path=path, hint="Choose another name."
        )
    return PefUnwritable(
        f"writing failed: {reason}", path=path, hint="Check the disk, then write again."
    )
