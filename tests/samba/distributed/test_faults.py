"""One bad replica ends all of them, with an error that names it, and none is left."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.samba.distributed.processes import Ended, all_well, run_replicas, worker
from tests.samba.distributed.worlds import compile_to, world

DEADLINE = 10
FAULTS = ("kill", "stop", "raise", "exit")
PLACES = ("forward", "reduce", "checkpoint")


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program with several buckets."""
    return compile_to(tmp_path_factory.mktemp("faults"), world("sgd"))


def train(
    pef: str, folder: Path, *arguments: str, size: int = 2, engine: str = "torch"
) -> list[Ended]:
    return run_replicas(
        size,
        worker("faulty"),
        pef,
        str(folder),
        *arguments,
        seconds=90,
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
        assert end.time - began < DEADLINE + 5
        assert "trained" not in end.out
        assert not end.left, f"rank {rank} left a process behind"
        assert f"rank {bad}" in end.err, f"rank {rank} does not name rank {bad}:\n{end.err}"


@pytest.mark.parametrize(
    ("fault", "bad", "place"),
    [("kill", 1, "reduce"), pytest.param("raise", 0, "forward", marks=pytest.mark.slow)],
)
def test_survivors_name_the_bad_rank(pef, tmp_path, fault, bad, place):
    check(train(pef, tmp_path, f"{fault}:{bad}:{place}"), fault, bad)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault(pef, tmp_path, fault, bad, place):
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
