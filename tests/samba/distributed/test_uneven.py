"""Replicas with different numbers of batches: torch's Join, or one error on each that says so."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tests.samba.distributed.processes import Ended, all_well, run_replicas, worker
from tests.samba.distributed.worlds import compile_to, world

MODES = ("normal", "inorder", "optimal")
DEADLINE = 10


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program with several buckets."""
    return compile_to(tmp_path_factory.mktemp("uneven"), world("sgd"))


def train(pef: str, mode: str, what: str, engine: str) -> list[Ended]:
    return run_replicas(
        2,
        worker("uneven"),
        pef,
        mode,
        what,
        seconds=90,
        env={"CCL_TIMEOUT": str(DEADLINE), "SN_DP_ENGINE": engine},
    )


def check(ended: list[Ended], *told: str) -> None:
    """Both ranks failed, each says what it was, and nobody is left."""
    for rank, (end, text) in enumerate(zip(ended, told, strict=True)):
        story = f"rank {rank}: code {end.code}\n{end.out}\n{end.err}"
        assert end.code not in (0, -9), story
        assert not end.left, story
        assert text in end.err, story
        assert "samba.session.join()" in end.err, "it says what to do"


EXIT = ("rank 1 is gone: its program has ended", "rank 1 ended its part after {} steps")
TOLD = {
    "exit": tuple(text.format(3) for text in EXIT),
    "epoch": tuple(text.format(6) for text in EXIT),
    "to_rdu": ("rank 1 is in setting tensors", "rank 0 is in step 4 of session.run"),
    "barrier": ("no answer from rank 1", "rank 1 ended its part after 3 steps"),
}


def test_both_ranks_say_who_has_ended(pef):
    check(train(pef, "inorder", "exit", "torch"), *TOLD["exit"])


@pytest.mark.slow
@pytest.mark.parametrize("what", TOLD)
@pytest.mark.parametrize("mode", MODES)
def test_every_end(pef, mode, what):
    check(train(pef, mode, what, "torch"), *TOLD[what])


@pytest.mark.slow
@pytest.mark.parametrize("what", TOLD)
@pytest.mark.parametrize("mode", MODES)
def test_every_end_with_the_jax_engine(pef, mode, what):
    check(train(pef, mode, what, "jax"), *TOLD[what])


def compare(folder: Path, engine: str, counts: str, combinations: list[str]) -> None:
    """Train as torch's DDP does within ``join``; all replicas end with the same bits."""
    for optimizer in {combination.split(":")[0] for combination in combinations}:
        compile_to(folder, world(optimizer))
    size = counts.count(",") + 1
    ended = run_replicas(
        size,
        worker("joined"),
        str(folder),
        counts,
        *combinations,
        seconds=240,
        env={"CCL_TIMEOUT": "60", "SN_DP_ENGINE": engine},
    )
    all_well(ended)
    assert all("compared" in end.out for end in ended)
    for combination in combinations:
        name = combination.replace(":", "-")
        files = [folder / f"{name}-{engine}-{rank}.pt" for rank in range(size)]
        first, *others = [torch.load(file, weights_only=True) for file in files]
        assert all(torch.equal(first[n], other[n]) for other in others for n in first)


ALL = [":".join(choice) for choice in itertools.product(["sgd", "adamw"], MODES, "01", "01")]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("counts", ["5,2", "1,4"])
def test_join_trains_as_torchs(tmp_path, engine, counts):
    compare(tmp_path, engine, counts, ALL)


@pytest.mark.slow
def test_join_of_four_replicas_one_of_which_has_no_data(tmp_path):
    compare(tmp_path, "torch", "2,0,3,1", ["adamw:optimal:1:0", "sgd:normal:0:1"])
