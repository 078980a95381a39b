"""Files damaged by accident are refused; those damaged on purpose are in ``fuzz/test_readings``."""

from __future__ import annotations

import random

import pytest

from pef_schema import PefError, PefMalformed, decode, encode
from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import HEADER_SIZE
from tests.pef_schema.forge import metadata_of, seal
from tests.pef_schema.samples import small, training


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
    for length in range(start, len(data), 7):
        assert _refused(data[:length]), f"cut to {length} bytes"


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
