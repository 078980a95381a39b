"""Write a program to a PEF."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from pef_schema._generated.pef import SCHEMA
from pef_schema.atomic import write_together
from pef_schema.complex_numbers import has_complex
from pef_schema.envelope import (
    HEADER_SIZE,
    MIN_READER,
    PefInfo,
    align,
    data_offset,
    make_header,
)
from pef_schema.limits import LIMITS, Limits
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.program import Program, Role
from pef_schema.rows import to_rows
from pef_schema.tables import Row
from pef_schema.verify import verify
from pef_schema.verify_buffer import read_tables
from pef_schema.write_buffer import write_tables


def write_pef(
    path: str | os.PathLike[str],
    program: Program,
    *,
    limits: Limits = LIMITS,
    log: Callable[[PefInfo], str] | None = None,
) -> PefInfo:
    """Write a program to a file, which afterwards is the old one or the new one, never a part.

    Args:
        path: The file; its folder must exist.
        program: The program.
        limits: Bounds to keep.
        log: Says what the file ``<path>.log`` tells people about this one; without it, none is
            written. At no moment the log of another program stands beside the PEF: a process that
            is killed between the two leaves none.

    Returns:
        What the file's header says.

    Raises:
        PefInvalid: If the program contradicts itself; nothing is written.
        PefLimit: If it is too large; nothing is written.
        PefUnwritable: If the folder or the disk refuses; the old files are untouched, unless the
            message says that the new one is in place.
    """
    name = os.fspath(path)
    head, info = _head(program, name, limits)
    beside = {} if log is None else {f"{name}.log": [log(info).encode()]}
    write_together(name, _chunks(head, info, program), beside)
    return info


def encode(program: Program, *, limits: Limits = LIMITS) -> bytes:
    """Return the bytes of a program's PEF; equal programs give equal bytes.

    Args:
        program: The program.
        limits: Bounds to keep.

    Returns:
        The content of the file.

    Raises:
        PefInvalid: If the program contradicts itself.
        PefLimit: If it is too large.
    """
    head, info = _head(program, None, limits)
    return b"".join(_chunks(head, info, program))


def version_of(program: Program) -> int:
    """The oldest format version that can say what a program says.

    Args:
        program: The program.

    Returns:
        2 for a program with custom gradients, which an older reader would take for derivatives, 3
        for one with an optimizer whose update rule is younger, 4 for one with complex numbers or
        with a forward pass that changes a weight; 1 for all others, whose bytes are those of
        version 1.
    """
    since = [2 for graph in program.graphs if graph.gradients]
    since += [4] if has_complex(program) or _changes_weights(program) else []
    since += [OPTIMIZER_RULES[optimizer.kind].since for optimizer in program.optimizers]
    return max(since, default=MIN_READER)


def _changes_weights(program: Program) -> bool:
    """Whether a forward pass changes a weight, as an embedding with ``max_norm`` does."""
    updates = [update for graph in program.graphs for update in graph.updates]
    return any(program.regions[update.region].role is Role.WEIGHT for update in updates)


def lay_out(lengths: list[int]) -> tuple[list[int], int]:
    """Place segments one after the other, each on a page boundary.

    Args:
        lengths: Their sizes in bytes.

    Returns:
        Their offsets from the start of the data, and the length of the data.
    """
    offsets: list[int] = []
    end = 0
    for length in lengths:
        offsets.append(align(end))
        end = offsets[-1] + length
    return offsets, end


def _head(program: Program, path: str | None, limits: Limits) -> tuple[bytes, PefInfo]:
    """Return header and metadata as one piece."""
    verify(program, limits=limits)
    offsets, data_length = lay_out([len(segment) for segment in program.segments])
    rows: list[Row] = [
        (offset, len(segment), hashlib.sha256(segment).digest())
        for offset, segment in zip(offsets, program.segments, strict=True)
    ]
    metadata = write_tables(SCHEMA, to_rows(program, rows))
    version = version_of(program)
    header = make_header(metadata, data_length, min_reader=version, writer=version, limits=limits)
    # What no reader would take is not written; this holds every budget of reading.
    read_tables(metadata, SCHEMA, base=HEADER_SIZE, path=path, limits=limits)
    info = PefInfo(
        path=path,
        min_reader=version,
        writer=version,
        size=data_offset(len(metadata), data_length) + data_length,
        metadata_length=len(metadata),
        data_length=data_length,
        digest=header[-32:].hex(),
    )
    return header + metadata, info


def _chunks(head: bytes, info: PefInfo, program: Program) -> Iterator[bytes]:
    """Yield the file's content without joining large constants."""
    yield head
    if not info.data_length:
        return
    end = HEADER_SIZE + info.metadata_length
    for segment in program.segments:
        yield bytes(align(end) - end)
        yield segment
        end = align(end) + len(segment)
