"""Limits on the size of a PEF and its parts; readers and writers enforce the same numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds, each inclusive.

    Args:
        file: Bytes of a file, of a region and of a value.
        metadata: Bytes of the FlatBuffer.
        expanded: Bytes of all strings and vectors of the FlatBuffer, shared ones counted at each
            use, so that a small file cannot stand for a huge program.
        items: Numbers and strings in vectors and vtables, shared ones counted at each use.
        memory: Bytes that a program may take up in memory while it is read, by a careful estimate,
            beyond one and a half times the size of the FlatBuffer; what is shared counts once.
        tables: FlatBuffers tables.
        vtables: Different layouts of tables; a writer has one for each set of fields that occurs.
        depth: Nesting of FlatBuffers tables.
        name: UTF-8 bytes of a name.
        source: UTF-8 bytes of a node's source, or of a text argument.
        text: UTF-8 bytes of a metadata value.
        rank: Dimensions of a tensor.
        empty: Product of the sizes of an empty tensor that come before the first 0.
        arg_depth: Nesting of lists in a node's arguments.
        ref_depth: Lists around a value reference in a node's arguments.
        nodes: Nodes of all graphs together.
        sections: Sections.
        work: Comparisons that checks make of what sections and schedules share.
    """

    file: int = 2**48
    metadata: int = 64 * 2**20
    expanded: int = 256 * 2**20
    items: int = 1_000_000
    memory: int = 184 * 2**20
    tables: int = 160_000
    vtables: int = 4096
    depth: int = 64
    name: int = 1024
    source: int = 4096
    text: int = 2**20
    rank: int = 16
    empty: int = 2**22
    arg_depth: int = 8
    ref_depth: int = 2
    nodes: int = 160_000
    sections: int = 50_000
    work: int = 1_500_000


LIMITS = Limits()
"""The limits of format version 1."""
