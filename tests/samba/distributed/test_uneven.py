"""Replicas with different numbers of batches, and what replicas send before their first step."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from samba.distributed import addresses
from samba.distributed.addresses import LOOPBACK
from samba.distributed.stores import HashStore
from tests.processes import SECONDS
from tests.samba.distributed.listening import chosen
from tests.samba.distributed.processes import Ended, all_well, run_replicas, worker
from tests.samba.distributed.worlds import MODES, compile_to, world

DEADLINE = 10


def train(pef: str, mode: str, what: str, engine: str) -> list[Ended]:
    return run_replicas(
        2,
        worker("uneven"),
        pef,
        mode,
        what,
        seconds=SECONDS,
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


EXIT = ("rank 1 is gone: its program has ended", "rank 1 finished after {} steps")
TOLD = {
    "exit": tuple(text.format(3) for text in EXIT),
    "epoch": tuple(text.format(6) for text in EXIT),
    "to_rdu": ("rank 1 is in setting tensors", "rank 0 is in step 4 of session.run"),
    "barrier": ("no answer from rank 1", "rank 1 finished after 3 steps"),
}


def test_both_ranks_say_who_has_ended(pef):
    check(train(pef, "inorder", "exit", "torch"), *TOLD["exit"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("what", TOLD)
@pytest.mark.parametrize("mode", MODES)
def test_every_end(pef, mode, what, engine):
    check(train(pef, mode, what, engine), *TOLD[what])


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


# -- messages before the first step ----------------------------------------------------


SIZE = 5
ROUNDS = math.ceil(math.log2(SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_agreements_before_the_first_step_are_logarithmic(folder, engine):
    """No all-gather: gloo's is a message from each rank to each. Its broadcast is a tree."""
    ended = run_replicas(
        SIZE,
        worker("counted"),
        str(folder),
        seconds=240,
        env={"SN_DP_ENGINE": engine, "CCL_TIMEOUT": "120"},
    )
    all_well(ended)
    for end in ended:
        found = json.loads(end.out.splitlines()[-1])
        assert found["joining"] == {"barrier": 1, "exchange": ROUNDS}
        # PEF and layout; kernels; which tensors are set.
        sets = found["loading"].pop("broadcast")
        assert sets > 0
        assert found["loading"] == {"exchange": 3 * ROUNDS}
        reductions = found["step 2"].pop("all_reduce", 0)
        assert bool(reductions) == (engine == "torch")
        assert not found["step 2"]
        for checked in ("step 0", "step 1"):
            assert found[checked].pop("all_reduce", 0) == reductions
            assert found[checked] == {"exchange": ROUNDS}


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, inner: HashStore) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str):
        self.asked[name] += 1
        return getattr(self._inner, name)


@pytest.mark.parametrize("size", [2, 3, 17])
def test_replicas_choose_places_by_as_many_requests_whatever_their_number(size):
    inner = HashStore()
    stores = [Counting(inner) for _ in range(size)]
    assert all(place.shared for place in chosen(stores, LOOPBACK, ["here"] * size))
    asked = sorted(sum(store.asked.values()) for store in stores)
    assert asked == [4] * (size - 1) + [6]  # the last to come tells the others


def test_one_replica_elsewhere_is_known_to_all(monkeypatch):
    monkeypatch.setattr(addresses, "facing", lambda host: "10.0.0.1")
    for odd in range(4):
        spaces = ["there" if rank == odd else "here" for rank in range(4)]
        found = chosen([HashStore()] * 4, "10.0.0.1", spaces)
        assert not any(place.shared for place in found)
