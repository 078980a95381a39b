"""Replicas of which one takes another branch than the graph was traced for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import samba
from emulator.errors import OtherBranch
from emulator.replicas.comm.errors import DataParallelError
from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.comm.protocol import Communicator
from pef_schema.program import Role
from samba.distributed.job import Job
from samba.distributed.replicas import Replicas
from samba.session.loaded import Loaded
from samba.session.request import RunRequest
from tests.samba.distributed.worlds import BATCH, batch
from tests.samba.worlds import World, named


class Guarded(nn.Module):
    """Two linear layers; labels from 3 on are an error."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if y.max() >= 3:
            raise ValueError("a label is too large")
        if not torch.isfinite(h).all():
            h = torch.nan_to_num(h)
        return nn.functional.cross_entropy(self.last(h.tanh()), y)


def loaded(folder: Path) -> Loaded:
    made = World(
        name="guarded",
        model=Guarded,
        inputs=lambda: batch(BATCH),
        optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.1),
        config={"data_parallel": True, "optim_level": "o1"},
    ).build()
    made.compile(folder)
    made.trace()
    found = samba.session._slot.loaded
    assert found is not None
    return found


def weights(program: Loaded) -> list[np.ndarray]:
    kept = (Role.WEIGHT, Role.OPTIMIZER_STATE)
    regions = enumerate(program.program.regions)
    return [program.device.read(i) for i, region in regions if region.role in kept]


@pytest.mark.parametrize("mode", ["normal", "optimal"])
def test_a_replica_that_takes_another_branch_says_so_and_nobody_updates(
    tmp_path: Path, mode: str
) -> None:
    programs = [loaded(tmp_path) for _ in range(2)]
    before = [weights(program) for program in programs]

    def one(communicator: Communicator) -> None:
        rank = communicator.rank
        program = programs[rank]
        program.join(Replicas(program.device, mode, Job(communicator, None, communicator)))
        given = batch(BATCH, step=rank)
        if rank == 1:
            given["x"][3] = float("inf")
        wish = program.replicas.wish(True, True, mode)
        assert program.only is not None
        program.only.run(RunRequest(named(given), (), {}, ((), (), None, None), None, True, wish))

    waiting, failed = run_ranks(2, one, deadline=10)
    assert isinstance(failed, OtherBranch) and "isfinite" in str(failed)
    assert failed.source.startswith(__file__)
    assert isinstance(waiting, DataParallelError)  # it waits for the other, who has gone
    for program, old in zip(programs, before, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(weights(program), old, strict=True))
