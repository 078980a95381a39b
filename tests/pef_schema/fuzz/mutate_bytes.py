"""Changes of a file's bytes that know nothing of what these mean."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

ByteMutation = Callable[[random.Random, bytearray, bytes], None]
"""Changes metadata in place; the last argument is the metadata of another file."""


def flip(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Change one bit."""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def splat(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Change one byte."""
    data[rng.randrange(len(data))] = rng.randrange(256)


_BOUNDS = (0, 1, 4, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1)


def bound(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Write a number where arithmetic turns over."""
    struct.pack_into("<I", data, rng.randrange(0, len(data) - 3, 4), rng.choice(_BOUNDS))


def swap(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Exchange two words."""
    one, two = (rng.randrange(0, len(data) - 3, 4) for _ in range(2))
    data[one : one + 4], data[two : two + 4] = data[two : two + 4], data[one : one + 4]


def inflate(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Raise a number that could be the length of a vector."""
    places = _words(data, range(1, 300))
    if places:
        place = rng.choice(places)
        (length,) = struct.unpack_from("<I", data, place)
        struct.pack_into("<I", data, place, length + rng.choice((1, 2, 7, 1000)))


def block(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Double or delete a block."""
    start, size = rng.randrange(0, len(data), 4), rng.choice((4, 8, 32, 100))
    if rng.random() < 0.5:
        data[start:start] = data[start : start + size]
    else:
        del data[start : start + size]


def splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Go on with another file."""
    cut = rng.randrange(4, min(len(data), len(other)), 4)
    data[cut:] = other[cut:]


def redirect(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Let a reference lead to where another one leads: shared, crossed and circular parts."""
    places = _words(data, range(4, len(data)))
    if len(places) > 1:
        one, two = rng.choice(places), rng.choice(places)
        target = two + struct.unpack_from("<I", data, two)[0]
        struct.pack_into("<I", data, one, (target - one) & 0xFFFFFFFF)


def drop_field(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Clear or move an entry that could be one of a vtable."""
    halves = memoryview(data)[: len(data) // 2 * 2].cast("H")
    places = [2 * i for i, half in enumerate(halves) if 4 <= half <= 64]
    halves.release()
    if places:
        struct.pack_into("<H", data, rng.choice(places), rng.choice((0, 0, 4, 8, 12)))


def _words(data: bytearray, wanted: range) -> list[int]:
    """Positions of the words whose number is wanted."""
    words = memoryview(data)[: len(data) // 4 * 4].cast("I")
    places = [4 * i for i, word in enumerate(words) if word in wanted]
    words.release()
    return places


BYTE_MUTATIONS: tuple[ByteMutation, ...] = (
    flip, splat, bound, swap, inflate, block, splice, redirect, drop_field,
)  # fmt: skip
"""All of them."""
