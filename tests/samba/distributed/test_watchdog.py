"""Whom a rank blames: what others told of themselves, and of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from samba.distributed.watchdog import Watchdog


class Shelf:
    """A store in memory; it answers where ``answers`` is set, and else nobody."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}
        self.answers = threading.Event()
        self.answers.set()

    def set(self, key: str, value: str) -> None:
        assert self.answers.wait(120)
        self._texts[key] = value.encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.answers.wait(120)
        return [self._texts[key] for key in keys]


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """Where ranks meet."""
    made = Shelf()
    yield made
    made.answers.set()


@pytest.fixture
def ranks(shelf: Shelf) -> Iterator[list[Watchdog]]:
    """Four ranks that watch each other."""
    made = [Watchdog(shelf, rank=rank, size=4, keeper=-1) for rank in range(4)]
    with ExitStack() as stack:
        for rank in made:
            rank.start()
            stack.callback(rank.stop)
        yield made


def test_the_other_side_of_a_partition_is_to_blame(ranks: list[Watchdog]) -> None:
    """Ranks 0 and 1 reached neither 2 nor 3: for 3 that is no fault of 2, which is beside it."""
    for rank in ranks[:2]:
        rank.tell("failed", "the sum failed because of ranks 2, 3", (2, 3))
    for rank in ranks[2:]:
        rank.look_again()
        found = rank.blame()
        assert found.ranks == (0, 1)
        assert "because of ranks 2, 3" in found.reason


def test_who_was_found_at_fault_before_is_named_by_all(ranks: list[Watchdog]) -> None:
    ranks[0].tell("failed", "the sum failed because of rank 2", (2,))
    for rank in (ranks[1], ranks[3]):
        rank.look_again()
        assert rank.blame().ranks == (2,)
    ranks[2].look_again()
    assert ranks[2].blame().ranks == (0,), "the one that went on without it"


def test_nobody_waits_again_for_a_store_that_does_not_answer(
    ranks: list[Watchdog], shelf: Shelf
) -> None:
    """A rank that ends would do so several times, and be late."""
    shelf.answers.clear()
    end = time.monotonic() + 60
    while not ranks[0].is_cut_off():
        assert time.monotonic() < end
        time.sleep(0.05)
    start = time.monotonic()
    ranks[0].tell("failed", "the sum failed", (1,), wait=60)
    ranks[0].look_again(60)
    assert time.monotonic() - start < 60
    shelf.answers.set()
    while ranks[2].blame(0).ranks != (1,):  # it is told all the same
        assert time.monotonic() < end
        time.sleep(0.05)
