"""Which values of an executable lie in memory, and from when to when.

What is elementwise is computed within what reads it, where all that read it can hold it; what it
reads itself then has to be there for these. A result takes the place of what it was made from where
that ends there, element by element.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from emulator.costs.buffers import Trace, Work
from emulator.op_facts.facts import Fusing

__all__ = ["Lifetime", "lifetimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """A value that lies in memory of the executable's own.

    Args:
        buffer: Index into ``Trace.buffers``.
        first: Position of the work that makes it.
        last: Position of the last work that reads it.
        instead: The buffer whose place it takes; -1 for none.
    """

    buffer: int
    first: int
    last: int
    instead: int = -1


def lifetimes(traced: Trace, gives: Collection[int]) -> tuple[Lifetime, ...]:
    """When which values are alive in the memory that an executable takes for itself.

    Args:
        traced: What it computes.
        gives: Regions that it gives back.

    Returns:
        A lifetime for each value that is neither an argument nor a result, and not computed within
        what reads it, in the order in which they are made.
    """
    works = traced.works
    left = {buffer for region, buffer in traced.left.items() if region in gives}
    given = set(traced.given.values())
    outside = given | left | _moved(works, left, given)
    read = _read_at(traced, outside)
    ends: dict[int, int] = {}
    for at, buffers in enumerate(read):
        for buffer in buffers:
            ends[buffer] = at
    found: list[Lifetime] = []
    for at, work in enumerate(works):
        free = [
            b
            for b in read[at]
            if work.fusing.holds and ends[b] == at and b not in outside and traced.buffers[b].nbytes
        ]
        for buffer in work.makes:
            size = traced.buffers[buffer].nbytes
            if buffer in outside or not size or buffer not in ends:
                continue
            fits = [b for b in free if traced.buffers[b].nbytes == size]
            instead = fits[0] if fits else -1
            if fits:
                free.remove(instead)
            found.append(Lifetime(buffer=buffer, first=at, last=ends[buffer], instead=instead))
    return tuple(found)


def _moved(works: Sequence[Work], left: set[int], given: set[int]) -> set[int]:
    """Values in whose place a result of the executable is written, element by element."""
    last: dict[int, int] = {}
    for at, work in enumerate(works):
        for buffer in work.reads:
            last[buffer] = at
    found: set[int] = set()
    for at in range(len(works) - 1, -1, -1):
        work = works[at]
        if work.fusing is not Fusing.CHEAP or len(work.makes) != 1:
            continue
        if work.makes[0] in left | found:
            ending = [b for b in work.reads if last[b] == at and b not in left | given]
            found.update(ending[:1])
    return found


def _read_at(traced: Trace, outside: set[int]) -> list[tuple[int, ...]]:
    """Buffers in memory that each work reads, by itself or for what is computed within it."""
    works = traced.works
    readers: dict[int, list[Work]] = {}
    for work in works:
        for buffer in work.reads:
            readers.setdefault(buffer, []).append(work)
    within: dict[int, tuple[int, ...]] = {}
    found: list[tuple[int, ...]] = []
    for work in works:
        reads: dict[int, None] = {}
        for buffer in work.reads:
            reads.update(dict.fromkeys(within.get(buffer, (buffer,))))
        found.append(tuple(reads))
        for buffer in work.makes:
            if buffer not in outside and _is_within(work, readers.get(buffer, ())):
                within[buffer] = tuple(reads)
    # What nobody reads but for values that are computed within others is read with these.
    for at, work in enumerate(works):
        if work.makes and all(b in within for b in work.makes):
            found[at] = ()
    return found


def _is_within(work: Work, readers: Sequence[Work]) -> bool:
    """Whether a result is computed within what reads it."""
    if work.fusing is Fusing.CHEAP:
        return all(reader.fusing.holds for reader in readers)
    return work.fusing is Fusing.DEAR and len(readers) == 1 and readers[0].fusing.holds
