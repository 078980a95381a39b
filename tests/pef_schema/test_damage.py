"""Files damaged by accident are refused; files damaged on purpose do no harm."""

from __future__ import annotations

import math
import random
import struct
import time
from collections.abc import Callable

import pytest

from pef_schema import PefError, PefMalformed, decode, encode, verify
from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import HEADER_SIZE
from tests.pef_schema.forge import data_of, metadata_of, seal
from tests.pef_schema.samples import inference, small, training


def _refused(data: bytes) -> bool:
    try:
        decode(data)
    except PefError:
        return True
    return False


def test_every_bit_flip_and_truncation() -> None:
    data = encode(small())
    assert 2048 < len(data) <= 4096
    damaged = bytearray(data)
    for position in range(len(data)):
        for bit in range(8):
            damaged[position] ^= 1 << bit
            assert _refused(bytes(damaged)), f"bit {bit} of byte {position}"
            damaged[position] ^= 1 << bit
    for length in range(len(data)):
        assert _refused(data[:length]), f"cut to {length} bytes"
    assert decode(bytes(damaged)) == small()


def test_flips_and_truncations_of_data() -> None:
    """The same where there are constants: in them, and in the padding before and between."""
    data = encode(training())
    start = HEADER_SIZE + len(metadata_of(data))
    damaged = bytearray(data)
    for position in range(start, len(data), 11):
        damaged[position] ^= 1 << position % 8
        assert _refused(bytes(damaged)), f"byte {position}"
        damaged[position] ^= 1 << position % 8
    for length in range(start, len(data)):
        assert _refused(data[:length]), f"cut to {length} bytes"


_Mutation = Callable[[random.Random, bytearray, bytes], None]


def _flip(rng: random.Random, data: bytearray, _: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _splat(rng: random.Random, data: bytearray, _: bytes) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


_BOUNDS = (0, 1, 4, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1)


def _bound(rng: random.Random, data: bytearray, _: bytes) -> None:
    struct.pack_into("<I", data, rng.randrange(0, len(data) - 3, 4), rng.choice(_BOUNDS))


def _swap(rng: random.Random, data: bytearray, _: bytes) -> None:
    one, two = (rng.randrange(0, len(data) - 3, 4) for _ in range(2))
    data[one : one + 4], data[two : two + 4] = data[two : two + 4], data[one : one + 4]


def _inflate(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Raise a number that could be the length of a vector."""
    places = [
        i for i in range(0, len(data) - 3, 4) if 0 < struct.unpack_from("<I", data, i)[0] < 300
    ]
    place = rng.choice(places)
    (length,) = struct.unpack_from("<I", data, place)
    struct.pack_into("<I", data, place, length + rng.choice((1, 2, 7, 1000)))


def _block(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Double or delete a block."""
    start, size = rng.randrange(0, len(data), 4), rng.choice((4, 8, 32, 100))
    if rng.random() < 0.5:
        data[start:start] = data[start : start + size]
    else:
        del data[start : start + size]


def _splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    cut = rng.randrange(4, min(len(data), len(other)), 4)
    data[cut:] = other[cut:]


def _drop_field(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Clear or move an entry that could be one of a vtable."""
    places = [
        i for i in range(0, len(data) - 1, 2) if 4 <= struct.unpack_from("<H", data, i)[0] <= 64
    ]
    struct.pack_into("<H", data, rng.choice(places), rng.choice((0, 0, 4, 8, 12)))


_MUTATIONS: tuple[_Mutation, ...] = (
    _flip,
    _splat,
    _bound,
    _swap,
    _inflate,
    _block,
    _splice,
    _drop_field,
)


def _fuzz(mutation: _Mutation, cases: int, seconds: float = math.inf) -> int:
    """Return how many mutated files were read; any error but a PefError fails the test.

    Args:
        mutation: What is done to a file.
        cases: How many files.
        seconds: CPU time that one may take.
    """
    rng = random.Random(mutation.__name__)
    goldens = [encode(make()) for make in (small, training, inference)]
    metadata = [metadata_of(golden) for golden in goldens]
    accepted = 0
    for case in range(cases):
        which = case % len(goldens)
        mutated = bytearray(metadata[which])
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            if len(mutated) > 64:
                mutation(rng, mutated, metadata[(which + 1) % len(goldens)])
        sealed = seal(bytes(mutated), data_of(goldens[which]))
        start = time.process_time()
        try:
            program = decode(sealed)
        except PefError:
            pass
        else:
            accepted += 1
            verify(program)
            assert encode(decode(encode(program))) == encode(program)
        assert time.process_time() - start < seconds
    return accepted


@pytest.mark.parametrize("mutation", _MUTATIONS, ids=lambda m: m.__name__)
def test_mutations_with_right_digest(mutation: _Mutation) -> None:
    assert _fuzz(mutation, 600) < 600


@pytest.mark.slow
@pytest.mark.parametrize("mutation", _MUTATIONS, ids=lambda m: m.__name__)
def test_many_mutations(mutation: _Mutation) -> None:
    assert _fuzz(mutation, 25_000, seconds=1.0) < 25_000


def test_random_bytes() -> None:
    rng = random.Random(0)
    for _ in range(500):
        noise = SCHEMA.identifier.rjust(8, b"\x10") + rng.randbytes(rng.randrange(300))
        with pytest.raises(PefError):
            decode(seal(noise))
        with pytest.raises(PefError):
            decode(rng.randbytes(rng.randrange(300)))


def test_zeros_are_no_program() -> None:
    """Plain FlatBuffers readers take a run of zeros for an empty table."""
    for size in (64, 2**20):
        with pytest.raises(PefMalformed):
            decode(seal(bytes(size)))
