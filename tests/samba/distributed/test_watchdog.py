"""One bad replica ends all of them, and whom a rank blames."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from samba.distributed.watchdog import Watchdog
from tests.processes import SECONDS
from tests.samba.distributed.processes import Ended, all_well, run_replicas, worker

# -- whom a rank blames ----------------------------------------------------------------


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
    """Ranks 0 and 1 reached neither 2 nor 3: for 3 that is not a fault of 2, which is beside it."""
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


# -- real replicas ---------------------------------------------------------------------


DEADLINE = 10
TO_SAY_SO = 15
"""Seconds that survivors may take beyond it, as docs/data_parallel.md says."""
FAULTS = ("kill", "stop", "raise", "exit")
PLACES = ("forward", "reduce", "checkpoint")


def train(
    pef: str, folder: Path, *arguments: str, size: int = 2, engine: str = "torch"
) -> list[Ended]:
    return run_replicas(
        size,
        worker("faulty"),
        pef,
        str(folder),
        *arguments,
        seconds=SECONDS,
        env={"CCL_TIMEOUT": str(DEADLINE), "SN_DP_ENGINE": engine},
    )


def check(ended: list[Ended], fault: str, bad: int) -> None:
    """Survivors failed, named the bad rank, and were quick."""
    assert "now" in ended[bad].out, ended[bad].err
    began = float(ended[bad].out.split("now", 1)[1].split()[0])
    expected = {"kill": -9, "stop": -9, "raise": 1, "exit": 3}[fault]  # stopped: killed by us
    assert ended[bad].code == expected, ended[bad].err
    for rank, end in enumerate(ended):
        if rank == bad:
            continue
        assert end.code == 1, f"rank {rank}: {end.code}\n{end.err}"
        assert end.time - began < DEADLINE + TO_SAY_SO
        assert "trained" not in end.out
        assert not end.left, f"rank {rank} left a process behind"
        assert f"rank {bad}" in end.err, f"rank {rank} does not name rank {bad}:\n{end.err}"


QUICK = ("kill", 1, "reduce")
EVERY = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow)
    for case in itertools.product(FAULTS, (0, 1), PLACES)
]


@pytest.mark.parametrize(("fault", "bad", "place"), EVERY)
def test_survivors_name_the_bad_rank(pef, tmp_path, fault, bad, place):
    check(train(pef, tmp_path, f"{fault}:{bad}:{place}"), fault, bad)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "bad"), list(itertools.product(FAULTS, [0, 2])))
def test_four_replicas(pef, tmp_path, fault, bad):
    check(train(pef, tmp_path, f"{fault}:{bad}:reduce", size=4), fault, bad)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "bad"), list(itertools.product(FAULTS, [0, 1])))
def test_the_jax_engine(pef, tmp_path, fault, bad):
    ended = train(pef, tmp_path, f"{fault}:{bad}:reduce", engine="jax")
    assert ended[1 - bad].code not in (0, -9)
    assert not ended[1 - bad].left
    assert f"rank {bad}" in ended[1 - bad].err


@pytest.mark.slow
def test_without_a_fault_it_ends_well(pef, tmp_path):
    ended = train(pef, tmp_path)
    all_well(ended)
    assert all("trained" in end.out and "atexit ran" in end.out for end in ended)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_use_abexit(pef, tmp_path, fault):
    ended = train(pef, tmp_path, f"{fault}:1:forward", "use_abexit")
    check(ended, fault, 1)
    for end in ended:
        assert "atexit_register ran" in end.out
        assert "atexit ran" not in end.out
