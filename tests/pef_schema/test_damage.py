"""Files damaged by accident are refused; files damaged on purpose do no harm."""

from __future__ import annotations

import math
import random
import time

import pytest

from pef_schema import PefError, PefMalformed, decode, encode, verify
from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import HEADER_SIZE
from tests.pef_schema.forge import data_of, metadata_of, seal
from tests.pef_schema.fuzz.mutate_bytes import BYTE_MUTATIONS, ByteMutation
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


def _fuzz(mutation: ByteMutation, cases: int, seconds: float = math.inf) -> int:
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


@pytest.mark.parametrize("mutation", BYTE_MUTATIONS, ids=lambda m: m.__name__)
def test_mutations_with_right_digest(mutation: ByteMutation) -> None:
    assert _fuzz(mutation, 200) < 200


@pytest.mark.slow
@pytest.mark.parametrize("mutation", BYTE_MUTATIONS, ids=lambda m: m.__name__)
def test_many_mutations(mutation: ByteMutation) -> None:
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
