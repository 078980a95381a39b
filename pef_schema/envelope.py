"""The 64 bytes at the head of a PEF, and where everything after them lies.

====== ==== =====================================================
offset size content
====== ==== =====================================================
0      8    magic ``89 50 45 46 0D 0A 1A 0A``
8      2    ``min_reader``: the oldest reader version that may read on
10     2    ``writer``: the format version that the file has
12     2    length of this header, 64
14     2    flags, 0
16     4    length of the metadata, which follow the header
20     4    offset of the data
24     8    length of the data
32     32   SHA-256 of bytes 0 to 31 and the metadata
====== ==== =====================================================

All numbers are little-endian. The magic follows PNG's: a transfer that changes line ends or
strips the eighth bit breaks it. The data is a run of segments, each on a page boundary; digests of
the segments stand in the metadata, so a flipped bit anywhere is found.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from pef_schema.errors import (
    PefDamaged,
    PefError,
    PefForHardware,
    PefLimit,
    PefNotOurs,
    PefTooNew,
    PefTooOld,
    PefTruncated,
)
from pef_schema.limits import LIMITS, Limits
from pef_schema.optimizer_rules import OPTIMIZER_RULES

MAGIC = b"\x89PEF\r\n\x1a\n"
WRITER_VERSION = max(4, *(rule.since for rule in OPTIMIZER_RULES.values()))
"""Latest version of the format that this package reads, and writes where a program needs it. An
optimizer's row says which version introduces it; all else that is new raises the number here."""
MIN_READER = 1
"""Oldest reader version that understands what this package writes, where a program allows it."""
OLDEST_WRITER = 1
"""Oldest format version that this package still reads."""
HEADER_SIZE = 64
PAGE = 4096
"""Alignment of data segments: the page size of common systems, so that they can be mapped."""

_FIELDS = struct.Struct("<8sHHHHIIQ")
_DIGEST_AT = _FIELDS.size
_HARDWARE_MAGIC = b"\x7fPEF"
_HARDWARE_MAGIC_AT = 0x70
PROBE_SIZE = _HARDWARE_MAGIC_AT + len(_HARDWARE_MAGIC)
"""Bytes to read from the head of a file so that what it is can be told."""

_KNOWN = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"PK\x03\x04", "a zip archive (PyTorch checkpoints are)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "an ELF program"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x89PEF", "a PEF changed by a text-mode transfer"),
    (b"\x09PEF", "a PEF stripped of its eighth bits in transfer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PefInfo:
    """Contents of the header of a PEF.

    Args:
        path: The file; None for bytes in memory.
        min_reader: Oldest reader version that may read the file.
        writer: Format version that it has.
        size: Size of the file in bytes.
        metadata_length: Bytes that describe the program.
        data_length: Bytes of constants.
        digest: SHA-256 over header and metadata in hexadecimal; these cover the digests of the
            constants, so equal digests mean equal programs.
    """

    path: str | None
    min_reader: int
    writer: int
    size: int
    metadata_length: int
    data_length: int
    digest: str

    @property
    def data_offset(self) -> int:
        """Where the constants start."""
        return data_offset(self.metadata_length, self.data_length)


def align(offset: int) -> int:
    """Return the first page boundary at or after ``offset``."""
    return -(-offset // PAGE) * PAGE


def data_offset(metadata_length: int, data_length: int) -> int:
    """Return where the data starts: on a page, or right after the metadata if there is none."""
    end = HEADER_SIZE + metadata_length
    return align(end) if data_length else end


def digest(fields: bytes | memoryview, metadata: bytes | memoryview) -> bytes:
    """Return the SHA-256 of the first 32 header bytes and the metadata."""
    state = hashlib.sha256(fields)
    state.update(metadata)
    return state.digest()


def make_head(
    metadata: bytes, data_length: int, *, version: int, path: str | None, limits: Limits
) -> tuple[bytes, PefInfo]:
    """Return header and metadata as one piece, with what the header says.

    Args:
        metadata: The FlatBuffer.
        data_length: Length of the data in bytes, gaps between segments included.
        version: Oldest format version that can say what the metadata say.
        path: The file; None for bytes in memory.
        limits: Bounds to keep.

    Raises:
        PefLimit: If metadata or file are too large.
    """
    header = make_header(metadata, data_length, min_reader=version, writer=version, limits=limits)
    size = data_offset(len(metadata), data_length) + data_length
    return header + metadata, parse_header(header, size, path=path, limits=limits)


def make_header(
    metadata: bytes,
    data_length: int,
    *,
    min_reader: int = MIN_READER,
    writer: int = WRITER_VERSION,
    limits: Limits = LIMITS,
) -> bytes:
    """Return the 64 bytes that precede the metadata.

    Args:
        metadata: The FlatBuffer.
        data_length: Length of the data in bytes, gaps between segments included.
        min_reader, writer: Versions to record.
        limits: Bounds to keep.

    Raises:
        PefLimit: If metadata or file are too large.
    """
    if len(metadata) > limits.metadata:
        what = _too_large("metadata", len(metadata), limits.metadata)
        raise PefLimit(what, need=limits.metadata, have=len(metadata))
    start = data_offset(len(metadata), data_length)
    end = start + data_length
    if end > limits.file:
        raise PefLimit(_too_large("file", end, limits.file), need=limits.file, have=end)
    fields = _FIELDS.pack(
        MAGIC, min_reader, writer, HEADER_SIZE, 0, len(metadata), start, data_length
    )
    return fields + digest(fields, metadata)


def _too_large(what: str, size: int, most: int) -> str:
    return f"{what} of {size} bytes, at most {most} are allowed"


def parse_header(
    head: bytes, size: int, *, path: str | None = None, limits: Limits = LIMITS
) -> PefInfo:
    """Check the header against itself and the file's size.

    Args:
        head: The first ``PROBE_SIZE`` bytes of the file, fewer if it is shorter.
        size: Size of the file in bytes.
        path: The file; None for bytes in memory.
        limits: Bounds to keep.

    Returns:
        What it says; its digest is not checked yet.

    Raises:
        PefNotOurs, PefTruncated, PefTooNew, PefTooOld, PefLimit, PefDamaged: In this order.
    """

    def refused(kind: type[PefError], what: str, offset: int, *, need: int, have: int) -> PefError:
        return kind(what, path=path, offset=offset, need=need, have=have)

    _check_magic(head, path)
    if len(head) < HEADER_SIZE:
        what = f"the header needs {HEADER_SIZE} bytes, {len(head)} are there"
        raise refused(PefTruncated, what, 0, need=HEADER_SIZE, have=len(head))
    _, min_reader, writer, header_size, flags, metadata_length, start, data_length = (
        _FIELDS.unpack_from(head)
    )
    # Versions first: a newer format may give all that follows another meaning.
    if min_reader > WRITER_VERSION:
        what = (
            f"format version {writer} needs a reader of version {min_reader} or later, "
            f"this one has version {WRITER_VERSION}"
        )
        raise refused(PefTooNew, what, 8, need=min_reader, have=WRITER_VERSION)
    if writer < OLDEST_WRITER:
        what = f"format version {writer}, the oldest that is read is {OLDEST_WRITER}"
        raise refused(PefTooOld, what, 10, need=OLDEST_WRITER, have=writer)
    if header_size != HEADER_SIZE:
        what = f"header length {header_size}, expected {HEADER_SIZE}"
        raise refused(PefDamaged, what, 12, need=HEADER_SIZE, have=header_size)
    if flags:
        raise refused(PefDamaged, f"unknown flags {flags:#06x}", 14, need=0, have=flags)
    if metadata_length > limits.metadata:
        what = _too_large("metadata", metadata_length, limits.metadata)
        raise refused(PefLimit, what, 16, need=limits.metadata, have=metadata_length)
    place = data_offset(metadata_length, data_length)
    if start != place:
        raise refused(
            PefDamaged, f"data offset {start}, expected {place}", 20, need=place, have=start
        )
    end = start + data_length
    if end > limits.file:
        what = _too_large("file", end, limits.file)
        raise refused(PefLimit, what, 24, need=limits.file, have=end)
    if size < end:
        what = f"the file should have {end} bytes, it has {size}"
        raise refused(PefTruncated, what, size, need=end, have=size)
    if size > end:
        what = f"{size - end} bytes follow the end of the content"
        raise refused(PefDamaged, what, end, need=end, have=size)
    return PefInfo(
        path=path,
        min_reader=min_reader,
        writer=writer,
        size=size,
        metadata_length=metadata_length,
        data_length=data_length,
        digest=head[_DIGEST_AT:HEADER_SIZE].hex(),
    )


def check_digest(info: PefInfo, head: bytes, metadata: bytes | memoryview) -> None:
    """Compare the recorded digest with that of the bytes.

    Args:
        info: The parsed header.
        head: The file's first bytes, at least 32.
        metadata: The FlatBuffer.

    Raises:
        PefDamaged: If they differ.
    """
    if digest(memoryview(head)[:_DIGEST_AT], metadata).hex() != info.digest:
        raise PefDamaged(
            "the SHA-256 of header and metadata is not the recorded one",
            path=info.path,
            offset=_DIGEST_AT,
        )


def _check_magic(head: bytes, path: str | None) -> None:
    if head.startswith(MAGIC):
        return
    if head[_HARDWARE_MAGIC_AT:PROBE_SIZE] == _HARDWARE_MAGIC:
        raise PefForHardware(
            "this PEF is made for SambaNova hardware, the emulator has a format of its own",
            path=path,
            offset=_HARDWARE_MAGIC_AT,
        )
    if MAGIC.startswith(head):
        what = "the file is empty" if not head else f"the file ends after {len(head)} bytes"
        raise PefTruncated(what, path=path, offset=len(head), need=HEADER_SIZE, have=len(head))
    for magic, name in _KNOWN:
        if head.startswith(magic):
            raise PefNotOurs(f"this is {name}, not a PEF", path=path, offset=0)
    raise PefNotOurs(
        f"the file starts with {head[:8].hex(' ')}, a PEF with {MAGIC.hex(' ')}",
        path=path,
        offset=0,
    )
