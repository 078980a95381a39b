"""A training that was cut off goes on from its checkpoint as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.samba.distributed.elastic import noted, said_in, started, wait_for
from tests.samba.distributed.processes import all_well, run_replicas, torchrun, worker
from tests.samba.distributed.workers import elastic
from tests.samba.distributed.worlds import compile_to, world


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where the training ends that runs through, and the one that was cut off."""
    found = tmp_path / "whole", tmp_path / "cut"
    for folder in found:
        folder.mkdir()
    return found


def assert_the_same_ends(*folders: Path) -> None:
    files = [folder / f"end{rank}.pt" for folder in folders for rank in (0, 1)]
    expected, *others = [torch.load(file, weights_only=True) for file in files]
    for found in others:
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[path], expected[path]) for path in expected)


@pytest.mark.slow
def test_restart_is_exact(tmp_path):
    pef = compile_to(tmp_path, world("adamw"))
    whole, cut = folders(tmp_path)

    def run(folder: Path, step: int):
        command = [*worker("restart"), pef, str(folder), str(step)]
        return run_replicas(2, command, seconds=120, env={"CCL_TIMEOUT": "20"})

    ended = run(cut, 7)
    assert [end.code for end in ended] == [1, -9], ended[0].err
    all_well(run(cut, -1))
    all_well(run(whole, -1))
    assert_the_same_ends(whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_worker_that_dies_changes_nothing(tmp_path, engine):
    """torchrun's elastic agent starts the replicas again."""
    pef = elastic.world(elastic.dropping).build().compile(tmp_path)
    whole, cut = folders(tmp_path)
    for folder, kill in ((whole, ()), (cut, ("1:5",))):
        script = [*worker("elastic")[1:], pef, str(folder), "0", *kill]
        command = [*torchrun(2, "--max-restarts=1"), *script]
        with started(command, folder, SN_DP_ENGINE=engine) as process:
            wait_for(process, folder, 200)
        steps = noted(folder)
        assert {step.generation for step in steps} == ({1, 2} if kill else {1}), said_in(folder)
    assert_the_same_ends(whole, cut)
