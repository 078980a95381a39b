"""Read a program from a PEF, believing nothing that has not been checked.

The order: kind of file, header, digest, structure of the metadata, digests of the segments,
meaning. A digest finds accidents; the checks after it also stand against a file made to harm.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import HEADER_SIZE, PROBE_SIZE, PefInfo, check_digest, parse_header
from pef_schema.errors import (
    PefDamaged,
    PefLimit,
    PefMalformed,
    PefMissing,
    PefNotRegular,
    PefTruncated,
    PefUnreadable,
    quoted,
)
from pef_schema.garbage import SELDOM_COLLECTED
from pef_schema.limits import LIMITS, Limits
from pef_schema.program import Program
from pef_schema.rows import from_rows
from pef_schema.tables import Row
from pef_schema.verify import verify
from pef_schema.verify_buffer import read_tables
from pef_schema.write import lay_out

_Fetch = Callable[[int, int], bytes | memoryview]
"""Returns so many bytes from an offset, fewer where the file ends."""

_T = TypeVar("_T")
_CHUNK = 16 * 2**20
"""Bytes of a constant that are read and hashed at a time."""


def read_pef(path: str | os.PathLike[str], *, limits: Limits = LIMITS) -> Program:
    """Read and check a PEF.

    Args:
        path: The file. A symbolic link is followed.
        limits: Bounds to keep.

    Returns:
        The program; it shares no memory with the file.

    Raises:
        PefError: One of its subclasses, according to what is wrong.
    """

    def read() -> Program:
        with _open_file(os.fspath(path)) as (fetch, size, shown):
            return _read(fetch, size, shown, limits)

    return _within_memory(read, os.fspath(path))


def decode(data: bytes, *, path: str | None = None, limits: Limits = LIMITS) -> Program:
    """Check the bytes of a PEF and return the program.

    Args:
        data: The content of a file.
        path: Where it came from, for messages.
        limits: Bounds to keep.

    Returns:
        The program.

    Raises:
        PefError: One of its subclasses, according to what is wrong.
    """
    view = memoryview(data)

    def fetch(start: int, count: int) -> memoryview:
        return view[start : start + count]

    return _within_memory(lambda: _read(fetch, len(data), path, limits), path)


def read_info(path: str | os.PathLike[str], *, limits: Limits = LIMITS) -> PefInfo:
    """Read what the header of a PEF says: versions, sizes, digest.

    Args:
        path: The file.
        limits: Bounds to keep.

    Returns:
        The header's content, checked against the file's size and the metadata's digest.

    Raises:
        PefError: One of its subclasses, according to what is wrong.
    """

    def read() -> PefInfo:
        with _open_file(os.fspath(path)) as (fetch, size, shown):
            return _read_head(fetch, size, shown, limits)[0]

    return _within_memory(read, os.fspath(path))


def _within_memory(read: Callable[[], _T], path: str | None) -> _T:
    """Read; where the memory does not suffice, say so."""
    try:
        return read()
    except MemoryError:
        pass
    # Only here, where nothing holds what was read so far: the error may be kept for long.
    raise PefLimit(
        "there is not enough memory to read it", path=path, hint="Free memory, or use another host."
    )


@contextmanager
def _open_file(path: str) -> Generator[tuple[_Fetch, int, str], None, None]:
    """Open a regular file; yield how to fetch bytes, its size and its path for messages."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise PefMissing(f"there is no file {_whole_path(path)}", path=path) from None
    except ValueError as error:
        raise PefMissing(f"{path!r} is not a path: {error}", path=path) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise PefNotRegular("this is a socket or a device, not a file", path=path) from None
        raise PefUnreadable(f"cannot open it: {error.strerror}", path=path) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise PefNotRegular(f"this is {kind}, not a file", path=path)

        def fetch(start: int, count: int) -> bytes:
            return _pread(descriptor, start, count, path)

        yield fetch, status.st_size, path
    finally:
        os.close(descriptor)


def _whole_path(path: str) -> str:
    """A path from the root on, and the working folder, for whoever looks for the file."""
    try:
        places = os.path.abspath(path), os.getcwd()
    except OSError:
        return quoted(path, 1024) + " (the working folder has been removed)"
    whole, folder = [quoted(place, 1024) for place in places]
    return whole + f" (working folder {folder})"


def _pread(descriptor: int, start: int, count: int, path: str) -> bytes:
    """Read ``count`` bytes from ``start``, fewer if the file ends."""
    pieces: list[bytes] = []
    while count:
        try:
            piece = os.pread(descriptor, count, start)
        except OSError as error:
            raise PefUnreadable(
                f"cannot read {count} bytes: {error.strerror}", path=path, offset=start
            ) from None
        if not piece:
            break
        pieces.append(piece)
        start, count = start + len(piece), count - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _exactly(
    fetch: _Fetch, start: int, count: int, what: str, path: str | None
) -> bytes | memoryview:
    """Fetch bytes that the file's size promised; it may have shrunk since."""
    data = fetch(start, count)
    if len(data) != count:
        raise _truncation(what, start + len(data), count, len(data), path)
    return data


def _truncation(what: str, offset: int, need: int, have: int, path: str | None) -> PefTruncated:
    """Make the error for a file that is shorter than it was when it was opened."""
    return PefTruncated(
        f"{what} needs {need} bytes, {have} are left",
        path=path,
        offset=offset,
        need=need,
        have=have,
    )


def _read_head(
    fetch: _Fetch, size: int, path: str | None, limits: Limits
) -> tuple[PefInfo, bytes | memoryview]:
    """Return the checked header and the metadata that its digest covers."""
    head = bytes(fetch(0, min(PROBE_SIZE, size)))
    info = parse_header(head, size, path=path, limits=limits)
    metadata = _exactly(fetch, HEADER_SIZE, info.metadata_length, "the metadata", path)
    check_digest(info, head, metadata)
    return info, metadata


def _read(fetch: _Fetch, size: int, path: str | None, limits: Limits) -> Program:
    """Go through all steps."""
    info, metadata = _read_head(fetch, size, path, limits)
    with SELDOM_COLLECTED:
        root = read_tables(metadata, SCHEMA, base=HEADER_SIZE, path=path, limits=limits)
        del metadata
        segments = _read_segments(fetch, info, root[10])
        program = from_rows(root, segments, path=path, limits=limits)
        del root
        verify(program, path=path, limits=limits)
    return program


def _read_segments(fetch: _Fetch, info: PefInfo, rows: list[Row]) -> list[bytes]:
    """Read the constants; they must lie exactly as a writer places them, zeros between them."""
    path = info.path
    lengths = [length for _, length, _ in rows]
    offsets, total = lay_out(lengths)
    if total != info.data_length or offsets != [offset for offset, _, _ in rows]:
        raise PefMalformed(
            "segments overlap, leave holes, are not on page boundaries or do not cover the data",
            path=path,
            offset=info.data_offset,
            need=total,
            have=info.data_length,
        )
    _check_memory(info)
    segments: list[bytes] = []
    end = HEADER_SIZE + info.metadata_length
    for index, (offset, length, digest) in enumerate(rows):
        start = info.data_offset + offset
        if start > end:
            gap = bytes(_exactly(fetch, end, start - end, "padding", path))
            if gap.count(0) != len(gap):
                raise PefDamaged("padding that is not zero", path=path, offset=end)
        segment, checksum = _read_segment(fetch, start, length, f"segment {index}", path)
        if checksum != digest:
            raise PefDamaged(
                f"the SHA-256 of segment {index} is not the recorded one", path=path, offset=start
            )
        segments.append(segment)
        end = start + length
    return segments


def _read_segment(
    fetch: _Fetch, start: int, length: int, what: str, path: str | None
) -> tuple[bytes, bytes]:
    """Return a constant and its SHA-256; in memory it is there once, however large it is."""
    state = hashlib.sha256()
    # A large buffer grows in place, and its content is taken over without a copy.
    buffer = io.BytesIO()
    have = 0
    while have < length:
        chunk = fetch(start + have, min(_CHUNK, length - have))
        if not len(chunk):
            raise _truncation(what, start + have, length, have, path)
        state.update(chunk)
        buffer.write(chunk)
        have += len(chunk)
    return buffer.getvalue(), state.digest()


def _check_memory(info: PefInfo) -> None:
    """Refuse constants that are larger than all of this host's memory, before any of it is used."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return
    if 0 < memory < info.data_length:
        raise PefLimit(
            f"constants of {info.data_length} bytes, this host has {memory} bytes of memory",
            path=info.path,
            offset=info.data_offset,
            need=info.data_length,
            have=memory,
            hint="Read it on a host with more memory.",
        )
