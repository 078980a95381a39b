"""Replace a file as a whole: afterwards it is the old one or the new one, never a part.

The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed; then
the folder is flushed too. A process killed halfway leaves its temporary behind; the next writer of
the same file removes it. A writer holds a lock on its temporary, so that nobody else's work in
progress is taken for a leftover, whatever machine or process id it has.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterable

from pef_schema.errors import PefUnwritable

_CHUNK = 2**20
_STEM = 64
"""Characters of the file's name that its temporary's name repeats, so that it is never too long."""


def write_atomically(path: str, chunks: Iterable[bytes]) -> None:
    """Write the chunks to ``path``, replacing what is there.

    A symbolic link at ``path`` is replaced, not followed.

    Args:
        path: The file.
        chunks: Its content, piece by piece.

    Raises:
        PefUnwritable: If anything fails; the old file, if any, is then untouched, unless the
            message says that the new one is in place.
    """
    folder, name = os.path.split(os.path.abspath(path))
    prefix = f".{name[:_STEM]}."
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _remove_leftovers(folder, prefix)
        descriptor, temporary = _create(folder, prefix)
        try:
            try:
                for chunk in chunks:
                    _write(descriptor, chunk)
                os.fsync(descriptor)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        finally:
            # Everything is on the disk or of no use: closing can lose nothing.
            with contextlib.suppress(OSError):
                os.close(descriptor)
    except OSError as error:
        raise _unwritable(path, folder, error) from None
    except ValueError as error:
        raise PefUnwritable(f"{path!r} is not a path: {error}", path=path) from None
    _flush_folder(path, folder)


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
    """Remove temporaries that no living writer has locked; failing to is no reason to stop."""
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
