"""torchrun's elastic agent starts replicas again, as many as before or not: training goes on."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.samba.distributed.elastic import noted, said_in, started, wait_for
from tests.samba.distributed.processes import worker
from tests.samba.distributed.workers.elastic import dropping, world

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ELASTIC = worker("elastic")[1:]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_worker_that_dies_changes_nothing(tmp_path, engine):
    pef = world(dropping).build().compile(tmp_path)
    ends = {}
    for name, kill in (("whole", ()), ("cut", ("1:5",))):
        folder = tmp_path / name
        folder.mkdir()
        options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
        command = [*TORCHRUN, *options, *ELASTIC, pef, str(folder), "0", *kill]
        with started(command, folder, SN_DP_ENGINE=engine) as process:
            wait_for(process, folder, 200)
        steps = noted(folder)
        assert {step.generation for step in steps} == ({1, 2} if kill else {1}), said_in(folder)
        ends[name] = [torch.load(folder / f"end{rank}.pt", weights_only=True) for rank in (0, 1)]
    expected = ends["whole"][0]
    for found in [ends["whole"][1], *ends["cut"]]:
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[path], expected[path]) for path in expected)
