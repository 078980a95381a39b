"""Damaged files by name: a kind and a number give the same bytes wherever they are made.

``python -m tests.fuzz reading rows:17`` reads one, and ``--write FILE`` keeps it.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pef_schema import decode
from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import HEADER_SIZE, MAGIC, digest
from pef_schema.write import lay_out, write_tables
from tests.pef_schema.forge import data_of, metadata_of, rows_of, seal
from tests.pef_schema.fuzz.mutate_bytes import BYTE_MUTATIONS
from tests.pef_schema.fuzz.mutate_rows import ROW_MUTATIONS
from tests.pef_schema.fuzz.mutate_sound import SOUND_MUTATIONS, repair
from tests.pef_schema.fuzz.seeds import Seed, Tree, load_seeds

_COUNTS = (1, 1, 1, 1, 2, 2, 3, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One damaged file.

    Args:
        kind: How it is made: a key of :data:`KINDS`.
        seed: Which one of its kind.
        base: A file to change instead of a seed.
        keep: Numbers of the changes to make; all of them if None.

    Example:
        >>> Case.parse("rows:17").build() == Case(kind="rows", seed=17).build()
        True
    """

    kind: str
    seed: int
    base: str = ""
    keep: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> Case:
        """A case from its name: ``KIND:SEED[@FILE][+CHANGE,...]``."""
        name, _, keep = text.partition("+")
        name, _, base = name.partition("@")
        kind, _, number = name.partition(":")
        if kind not in KINDS or not number.isdecimal():
            raise ValueError(
                f"{text!r} is not a case: expected KIND:SEED with one of {sorted(KINDS)}"
            )
        kept = tuple(int(n) for n in keep.split(",") if n != "-") if keep else None
        return cls(kind=kind, seed=int(number), base=base, keep=kept)

    def __str__(self) -> str:
        base = f"@{self.base}" if self.base else ""
        keep = "" if self.keep is None else "+" + (",".join(map(str, self.keep)) or "-")
        return f"{self.kind}:{self.seed}{base}{keep}"

    def build(self) -> bytes:
        """The file."""
        return KINDS[self.kind](_Draw(self))

    def changes(self) -> int:
        """How many changes its kind and seed stand for."""
        draw = _Draw(self)
        KINDS[self.kind](draw)
        return draw.made


class _Draw:
    """Random choices of one case; each change has a generator of its own, so that it can be left
    out without another one becoming different."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.name = f"{case.kind}:{case.seed}"
        self.rng = random.Random(self.name)
        self.made = 0

    def seed(self) -> Seed:
        """The good file to change."""
        # Goldens say all that the format can, which no device could run.
        golden = self.rng.random() < 0.1
        chosen = self.rng.choice([s for s in load_seeds() if s.golden is golden])
        return _seed_of_file(self.case.base) if self.case.base else chosen

    def other(self) -> Seed:
        """Another good file."""
        return self.rng.choice(load_seeds())

    def change(self, mutations: tuple[Any, ...], *args: Any) -> None:
        """Make some changes of a kind, those that the case keeps."""
        for _ in range(self.rng.choice(_COUNTS)):
            mutation = self.rng.choice(mutations)
            number, self.made = self.made, self.made + 1
            if self.case.keep is None or number in self.case.keep:
                mutation(random.Random(f"{self.name}:{number}"), *args)


@functools.lru_cache(maxsize=64)
def _seed_of_file(path: str) -> Seed:
    pef = Path(path).read_bytes()
    program = decode(pef)
    return Seed(
        name=Path(path).stem,
        golden=False,
        program=program,
        metadata=metadata_of(pef),
        data=data_of(pef),
        rows=rows_of(program),
    )


def _by_bytes(draw: _Draw) -> bytes:
    seed = draw.seed()
    changed = bytearray(seed.metadata)
    draw.change(_LONG_ENOUGH, changed, draw.other().metadata)
    return _seal(draw, bytes(changed), seed.data)


def _guarded(mutation: Callable[..., None]) -> Callable[..., None]:
    def change(rng: random.Random, data: bytearray, other: bytes) -> None:
        if len(data) > 64:
            mutation(rng, data, other)

    return change


_LONG_ENOUGH = tuple(map(_guarded, BYTE_MUTATIONS))


def _by_rows(draw: _Draw) -> bytes:
    seed = draw.seed()
    tree = Tree(seed.thawed())
    draw.change(ROW_MUTATIONS, tree)
    return _seal(draw, write_tables(SCHEMA, tree.root), seed.data)


def _sound(draw: _Draw) -> bytes:
    seed = draw.seed()
    tree = Tree(seed.thawed())
    draw.change(SOUND_MUTATIONS + SOUND_MUTATIONS + ROW_MUTATIONS, tree)
    repair(tree)
    return _seal(draw, write_tables(SCHEMA, tree.root), seed.data)


def _mixed(draw: _Draw) -> bytes:
    seed = draw.seed()
    tree = Tree(seed.thawed())
    draw.change(ROW_MUTATIONS + SOUND_MUTATIONS, tree)
    changed = bytearray(write_tables(SCHEMA, tree.root))
    draw.change(_LONG_ENOUGH, changed, draw.other().metadata)
    return _seal(draw, bytes(changed), seed.data)


def _header(draw: _Draw) -> bytes:
    """A field of the header is another; the digest is that of what is there."""
    seed = draw.seed()
    good = seal(seed.metadata, seed.data)
    fields = list(_HEADER.unpack_from(good))

    def change(rng: random.Random) -> None:
        at = rng.randrange(len(fields))
        size = struct.calcsize("HHHHIIQ"[at])
        most = 2 ** (8 * size) - 1
        near = (fields[at] + rng.choice((-4096, -64, -8, -1, 1, 8, 64, 4096))) & most
        fields[at] = rng.choice((near, near, 0, most, rng.randrange(most + 1)))

    draw.change((change,))
    head = MAGIC + _HEADER_FIELDS.pack(*fields)
    length = min(fields[4], len(good) - HEADER_SIZE)
    metadata = good[HEADER_SIZE : HEADER_SIZE + length]
    return head + digest(head, metadata) + good[HEADER_SIZE:]


_HEADER_FIELDS = struct.Struct("<HHHHIIQ")
_HEADER = struct.Struct("<8xHHHHIIQ")


def _data(draw: _Draw) -> bytes:
    """Constants are longer, shorter or others; their digests are those of what is there."""
    seed = draw.seed()
    if draw.case.base == "":
        seed = draw.rng.choice([s for s in load_seeds() if s.data] or [seed])
    segments = [bytearray(segment) for segment in seed.program.segments]
    padding: list[int] = []

    def change(rng: random.Random) -> None:
        kind = rng.randrange(6)
        segment = rng.choice(segments) if segments else bytearray()
        if kind == 0 and segment:
            segment[rng.randrange(len(segment))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            segment += rng.randbytes(rng.choice((1, 4, 4096, 5000)))
        elif kind == 2:
            del segment[rng.randrange(len(segment) + 1) :]
        elif kind == 3:
            segments.append(bytearray(rng.randbytes(rng.choice((0, 1, 300)))))
        elif kind == 4 and segments:
            segments.remove(segment)
        else:
            padding.append(rng.randrange(2**20))

    draw.change((change,))
    offsets, _ = lay_out([len(segment) for segment in segments])
    root = seed.thawed()
    root[10] = [
        [offset, len(segment), hashlib.sha256(segment).digest()]
        for offset, segment in zip(offsets, segments, strict=True)
    ]
    data = bytearray()
    for offset, segment in zip(offsets, segments, strict=True):
        data += bytes(offset - len(data)) + segment
    for place in padding:
        if data:
            data[place % len(data)] ^= 1
    return _seal(draw, write_tables(SCHEMA, root), bytes(data))


def _seal(draw: _Draw, metadata: bytes, data: bytes) -> bytes:
    version = draw.rng.choice((1, 2))
    return seal(metadata, data, min_reader=version, writer=2)


KINDS: dict[str, Callable[[_Draw], bytes]] = {
    "bytes": _by_bytes,
    "rows": _by_rows,
    "sound": _sound,
    "mixed": _mixed,
    "header": _header,
    "data": _data,
}
"""How the files of each kind are made."""

SHARES = {"bytes": 37, "rows": 31, "sound": 21, "mixed": 6, "header": 3, "data": 2}
"""Of a hundred files that are read, how many are of a kind."""
