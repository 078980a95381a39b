"""Broken files: wrong headers, wrong FlatBuffers, wrong segments."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from pef_schema import (
    WRITER_VERSION,
    PefDamaged,
    PefError,
    PefForHardware,
    PefInvalid,
    PefLimit,
    PefMalformed,
    PefNotOurs,
    PefTooNew,
    PefTooOld,
    PefTruncated,
    encode,
)
from pef_schema.envelope import HEADER_SIZE, MAGIC
from tests.pef_schema.cases import CASES as CASES, add_case, set_field
from tests.pef_schema.forge import Map, data_of, encode_rows, later_metadata, metadata_of, seal
from tests.pef_schema.heavy import HEAVY
from tests.pef_schema.samples import inference, training


def _good() -> bytes:
    return encode(inference())


def _patched(position: int, new: bytes) -> bytes:
    """Return a good file with some bytes replaced; the digest is not repaired."""
    good = _good()
    return good[:position] + new + good[position + len(new) :]


# The kind of file, and the header.

add_case("empty", PefTruncated, "the file is empty", lambda: b"")
add_case("one_byte", PefTruncated, "ends after 1 bytes", lambda: MAGIC[:1])
add_case("half_header", PefTruncated, "the header needs 64 bytes, 32", lambda: _good()[:32])
add_case("half_file", PefTruncated, "the file should have", lambda: _good()[:396])
add_case("missing_2_bytes", PefTruncated, "the file should have", lambda: _good()[:-2])
add_case("trailing_bytes", PefDamaged, "2 bytes follow the end", lambda: _good() + b"\0\0")
add_case("text", PefNotOurs, "a PEF with 89 50 45 46", lambda: b"import torch\n" * 9)
add_case("zeros", PefNotOurs, "00 00 00 00", lambda: bytes(4096))
add_case("png", PefNotOurs, "a PNG picture", lambda: b"\x89PNG\r\n\x1a\n" + bytes(200))
add_case("zip", PefNotOurs, "a zip archive", lambda: b"PK\x03\x04" + bytes(200))
add_case("gzip", PefNotOurs, "a gzip archive", lambda: b"\x1f\x8b\x08" + bytes(200))
add_case("elf", PefNotOurs, "an ELF program", lambda: b"\x7fELF" + bytes(200))
add_case("pickle", PefNotOurs, "a pickle", lambda: b"\x80\x04\x95" + bytes(200))
add_case("line_ends", PefNotOurs, "text-mode transfer", lambda: _good().replace(b"\r\n", b"\n"))
add_case("seven_bits", PefNotOurs, "eighth bits", lambda: bytes(b & 127 for b in _good()))
add_case("hardware", PefForHardware, "SambaNova hardware", lambda: bytes(0x70) + b"\x7fPEF\0" * 9)
add_case(
    "old_version",
    PefTooOld,
    "format version 0, the oldest that is read is 1",
    lambda: seal(metadata_of(_good()), writer=0),
)
add_case(
    "future_major",
    PefTooNew,
    f"version 99 needs a reader of version 98 or later, this one has version {WRITER_VERSION}",
    lambda: seal(metadata_of(_good()), min_reader=98, writer=99),
)
add_case("header_length", PefDamaged, "header length 72", lambda: _patched(12, b"\x48\0"))
add_case("unknown_flag", PefDamaged, "unknown flags 0x0004", lambda: _patched(14, b"\4\0"))
add_case("huge_metadata", PefLimit, "metadata of 4294967295", lambda: _patched(16, b"\xff" * 4))
add_case("data_offset", PefDamaged, "data offset 16, expected", lambda: _patched(20, b"\x10\0\0\0"))
add_case(
    "huge_data",
    PefLimit,
    "at most 281474976710656 are allowed",
    lambda: _patched(20, struct.pack("<IQ", 4096, 2**62)),
)
add_case("digest_flip", PefDamaged, "SHA-256 of header", lambda: _patched(40, b"\0"))
add_case("metadata_flip", PefDamaged, "SHA-256 of header", lambda: _patched(400, b"\xff"))


# The structure of the metadata; digests are right from here on.


def _structure(name: str, text: str, change: Callable[[Map], Map]) -> None:
    add_case(name, PefMalformed, text, lambda: change(Map(metadata_of(_good()))).sealed())


def _vtable_entry(name: str, text: str, field: int, start: Callable[[Map], int]) -> None:
    """Add a case in which a field of the root starts elsewhere in its table."""
    _structure(name, text, lambda m: m.put("H", m.slot(m.root(), field), start(m)))


def _region(m: Map) -> int:
    return m.child(m.root(), 3)


def _name(m: Map) -> int:
    """Where the root refers to its name."""
    return m.field(m.root(), 0)


add_case("no_metadata", PefMalformed, "metadata of 0 bytes", lambda: seal(b""))
_structure("identifier", "file identifier", lambda m: m.put("B", 4, ord("X")))
_structure("root_zero", "root offset 0", lambda m: m.put("I", 0, 0))
_structure("root_past_end", "Program lies outside", lambda m: m.put("I", 0, 2**32 - 4))
_structure("root_misaligned", "misaligned", lambda m: m.put("I", 0, m.root() + 2))
_structure(
    "vtable_past_end", "vtable of Program lies outside", lambda m: m.put("i", m.root(), -(2**30))
)
_structure(
    "vtable_before_start",
    "vtable of Program lies outside",
    lambda m: m.put("i", m.root(), 2**30),
)
_structure("vtable_odd", "misaligned", lambda m: m.put("i", m.root(), m.root() - 9))
_structure("vtable_short", "has size 2", lambda m: m.put("H", m.vtable(m.root()), 2))
_structure("vtable_long", "has size 65534", lambda m: m.put("H", m.vtable(m.root()), 65534))
_structure(
    "table_tiny",
    "table Program has size 2",
    lambda m: m.put("H", m.vtable(m.root()) + 2, 2),
)
_structure(
    "table_past_end",
    "table Program ends outside",
    lambda m: m.put("H", m.vtable(m.root()) + 2, 65532),
)
_OUTSIDE = "Program.name lies outside its table or is misaligned"
_vtable_entry("field_past_table", _OUTSIDE, 0, lambda m: 400)
_vtable_entry("field_misaligned", _OUTSIDE, 0, lambda m: _name(m) - m.root() + 1)
_OVERLAPS = "overlaps its neighbour"
_vtable_entry("fields_overlap", _OVERLAPS, 0, lambda m: m.field(m.root(), 1) - m.root())
_vtable_entry("field_over_vtable_offset", _OVERLAPS, 2, lambda m: 2)
_vtable_entry("required_missing", "Program.name is missing", 0, lambda m: 0)
_structure(
    "string_past_end",
    "a string or vector lies outside",
    lambda m: m.put("I", _name(m), 2**31),
)
_NEEDS, _ALL = "a string or vector needs {} bytes", 2**32 - 1
_structure("string_too_long", _NEEDS.format(_ALL), lambda m: m.put("I", m.target(_name(m)), _ALL))
_structure(
    "string_not_terminated",
    "a string has no terminating zero",
    lambda m: m.put("I", m.target(_name(m)), 3),
)
_structure(
    "string_not_utf8", "a string is not UTF-8", lambda m: m.put("B", m.target(_name(m)) + 4, 0xFF)
)
_structure(
    "vector_too_long",
    _NEEDS.format(4 * _ALL),
    lambda m: m.put("I", m.target(m.field(m.root(), 3)), _ALL),
)
_structure(
    "shape_too_long",
    _NEEDS.format(8 * _ALL),
    lambda m: m.put("I", m.target(m.field(_region(m), 1)), _ALL),
)
_structure(
    "vector_misaligned",
    "elements are misaligned",
    lambda m: m.put("I", m.field(_region(m), 1), m.u32(m.field(_region(m), 1)) + 4),
)
_structure(
    "reference_misaligned",
    "lies outside or is misaligned",
    lambda m: m.put("I", _name(m), m.u32(_name(m)) + 2),
)
_structure("reference_zero", "a reference to itself", lambda m: m.put("I", _name(m), 0))
_structure(
    "element_zero",
    "a reference to itself",
    lambda m: m.put("I", m.target(m.field(m.root(), 3)) + 4, 0),
)
_structure(
    "table_twice",
    "table Region is reached twice",
    lambda m: m.put(
        "I", m.target(m.field(m.root(), 3)) + 8, m.u32(m.target(m.field(m.root(), 3)) + 4) - 4
    ),
)
_structure("bool_2", "a bool is 2", lambda m: m.put("B", m.field(m.root(), 2), 2))


def _later_field_outside() -> bytes:
    m = Map(later_metadata(inference()))
    return m.put("H", m.slot(m.root(), 12), 400).sealed()


_LATER = "a later field of Program lies outside"
add_case("later_field_outside", PefMalformed, _LATER, _later_field_outside)


# The segments.


def _segment(
    name: str,
    text: str,
    change: Callable[[list[Any]], None],
    error: type[PefError] = PefMalformed,
) -> None:
    """Add a case of a file with two segments whose rows are changed."""
    add_case(name, error, text, lambda: encode_rows(training(), lambda root: change(root[10])))


_OTHER = hashlib.sha256(b"other").digest()
_segment("segments_overlap", "segments overlap", lambda rows: set_field(rows[1], 0, 0))
_segment("segments_hole", "leave holes", lambda rows: set_field(rows[1], 0, 8192))
_segment("segment_off_page", "page boundaries", lambda rows: set_field(rows[1], 0, 64))
_segment("segment_short", "do not cover the data", lambda rows: set_field(rows[1], 1, 299))
_segment("segment_past_end", "segments overlap", lambda rows: set_field(rows[1], 1, 2**64 - 1))
_segment("segments_missing", "do not cover the data", lambda rows: rows.clear())
_segment(
    "segment_digest", "SHA-256 of segment 1", lambda rows: set_field(rows[1], 2, _OTHER), PefDamaged
)
_segment(
    "segment_digest_short",
    "SHA-256 of segment 0",
    lambda rows: set_field(rows[0], 2, rows[0][2][:8]),
    PefDamaged,
)


def _with_data(position: int) -> bytes:
    good = encode(training())
    data = bytearray(data_of(good))
    data[position] ^= 1
    return seal(metadata_of(good), bytes(data))


add_case("segment_flip", PefDamaged, "SHA-256 of segment 0", lambda: _with_data(3))
add_case("padding_between", PefDamaged, "padding that is not zero", lambda: _with_data(2000))


def _first_padding() -> bytes:
    good = encode(training())
    position = HEADER_SIZE + len(metadata_of(good)) + 5
    return good[:position] + b"\1" + good[position + 1 :]


add_case("padding_before", PefDamaged, "padding that is not zero", _first_padding)


# Files that cost more than they may.


def _heavy(name: str, maker: str, size: int, text: str, error: type[PefError] = PefLimit) -> None:
    add_case(name, error, text, lambda: HEAVY[maker](size))


_heavy("budget_items", "long_vectors", 5100, "items of vectors, at most 1000000")
_heavy("budget_memory", "overlapping_vectors", 12_000, "bytes of memory, at most")
_heavy("budget_text", "overlapping_strings", 80_000, "bytes of memory, at most")
_heavy("budget_twins", "twins_share_outputs", 870, "sections and their twins takes")
_heavy("shape_shared", "long_shapes", 500, "region 1 (r1): rank 500", PefInvalid)
_heavy("steps_shared", "steps_of_a_twin", 50, "expected one step or FWD and BCKWD", PefInvalid)
_heavy("name_shared", "long_names", 3000, "text of 3000 bytes", PefInvalid)
