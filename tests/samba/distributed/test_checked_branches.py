"""Replicas of which one takes another branch than the graph was traced for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import samba
from emulator.errors import OtherBranch
from emulator.replicas.comm.errors import DataParallelError
from samba.session.loaded import Loaded
from tests.samba.distributed.worlds import (
    BATCH,
    batch,
    newly_loaded,
    run_step,
    same,
    together,
    trained,
)
from tests.samba.worlds import World


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


GUARDED = World(
    name="guarded",
    model=Guarded,
    inputs=lambda: batch(BATCH),
    optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.1),
    config={"data_parallel": True, "optim_level": "o1"},
)


@pytest.mark.parametrize("mode", ["normal", "optimal"])
def test_a_replica_that_takes_another_branch_says_so_and_nobody_updates(
    tmp_path: Path, mode: str
) -> None:
    programs = [newly_loaded(GUARDED, tmp_path) for _ in range(2)]
    before = [trained(program) for program in programs]

    def one(program: Loaded, rank: int) -> None:
        given = batch(BATCH, step=rank)
        if rank == 1:
            given["x"][3] = float("inf")
        run_step(program, given)

    waiting, failed = together(programs, one, mode)
    assert isinstance(failed, OtherBranch) and "isfinite" in str(failed)
    assert failed.source.startswith(__file__)
    assert isinstance(waiting, DataParallelError)  # it waits for the other, who has gone
    assert all(same(old, trained(program)) for program, old in zip(programs, before, strict=True))
