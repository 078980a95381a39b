"""The header of a safetensors file, checked before anything else of the file is read.

A file begins with the size of its header (8 bytes, little-endian), then comes the header: JSON, in
which each tensor has an entry with its type, its shape, and where its bytes begin and end behind
the header.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pef_schema.errors import quoted
from samba.errors import literal
from samba.support.strict_json import NotJson, parse_json

__all__ = ["DTYPES", "HEADER_BYTES", "BadHeader", "Entry", "read_header"]

HEADER_BYTES = 32 * 2**20
"""Longest header that is read: some 250,000 tensors."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by their names in such files."""

_RANK = 64
_ENTRY = frozenset({"dtype", "shape", "data_offsets"})


class BadHeader(Exception):  # checkpoint.py makes a SambaError of it, which has the path
    """A file is not what it should be; the text says what was found and what was wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor of a file.

    Args:
        dtype, shape: Of the tensor.
        start, end: Its bytes, counted from the end of the header.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file by name.

    Args:
        path: The file.

    Raises:
        BadHeader: If it is no such file, or its tensors are not side by side in all of it.
        OSError: If it cannot be read.
    """
    with open(path, "rb", opener=_open) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadHeader("it is no regular file")
        first = file.read(8)
        if len(first) < 8:
            raise BadHeader(f"it ends after {len(first)} bytes, within the size of its header")
        size, rest = int.from_bytes(first, "little"), status.st_size - 8
        if size > min(rest, HEADER_BYTES):
            raise BadHeader(
                f"its first 8 bytes claim a header of {size} bytes; {rest} bytes follow"
                + (f", and {HEADER_BYTES} at most are read" if size <= rest else "")
            )
        text = file.read(size)
    if len(text) < size:
        raise BadHeader(f"it ends within its header of {size} bytes")
    try:
        header = parse_json(text)
    except NotJson as error:
        raise BadHeader(str(error)) from None
    return _entries(_object(header), rest - size)


def _open(path: str, flags: int) -> int:
    # Not waiting for the other end of a pipe.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BadHeader(f"its JSON is a {type(found).__name__}, wanted an object")
    return found


def _entries(header: dict[str, Any], data: int) -> dict[str, Entry]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadHeader("__metadata__ of its header is no object of texts")
    entries = {name: _entry(name, fields) for name, fields in header.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            raise BadHeader(
                f"{quoted(name)} begins at byte {entry.start} of the data, wanted {end}: tensors "
                "lie side by side"
            )
        end = entry.end
    if end != data:
        raise BadHeader(f"its tensors take {end} bytes, and {data} bytes follow its header")
    return entries


def _entry(name: str, fields: Any) -> Entry:
    where = f"{quoted(name)} of its header"
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadHeader(f"the name {quoted(name)} is no Unicode text") from None
    if not isinstance(fields, dict) or set(fields) != _ENTRY:
        raise BadHeader(f"{where} has not the fields dtype, shape and data_offsets alone")
    dtype = DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        raise BadHeader(
            f"{where} has dtype {literal(fields['dtype'])}, wanted one of {', '.join(DTYPES)}"
        )
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _are_sizes(shape) or len(shape) > _RANK:
        raise BadHeader(f"{where} has shape {literal(shape)}, wanted whole numbers from 0 on")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise BadHeader(f"{where} has data_offsets {literal(offsets)}, wanted a start and an end")
    start, end = offsets
    # Sizes of 0 do not hide others: torch multiplies them all.
    if math.prod([size for size in shape if size]) * dtype.itemsize >= 2**63:
        raise BadHeader(f"{where} has shape {literal(shape)}, which is too large")
    wanted = math.prod(shape) * dtype.itemsize
    if end - start != wanted:
        raise BadHeader(
            f"{where} has bytes {start} to {end}, wanted {wanted} of them for shape "
            f"{literal(shape)} {fields['dtype']}"
        )
    return Entry(dtype=dtype, shape=tuple(shape), start=start, end=end)


def _are_sizes(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 2**63 for n in found)
