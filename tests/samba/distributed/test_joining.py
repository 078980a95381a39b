"""Data of some replicas ends before that of others: torch's ``Join``; ranks are threads here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.comm.protocol import Communicator
from pef_schema.program import Role
from samba.distributed.job import Job
from samba.distributed.replicas import Replicas
from samba.session.joining import joining
from samba.session.loaded import Loaded
from samba.session.request import RunRequest
from tests.samba.distributed.worlds import (
    OPTIMIZERS,
    Deep,
    batch,
    loaded,
)
from tests.samba.worlds import named

COUNTS = (4, 2, 3)
"""Batches of each rank."""
MODES = ("normal", "inorder", "optimal")


def samples(rank: int, step: int) -> dict[str, torch.Tensor]:
    return batch(8, 10 * rank + step)


def run(program: Loaded, rank: int, step: int, **more: Any) -> None:
    """A step of a program, as ``session.run`` does it."""
    replicas = program.replicas
    wish = replicas.wish(True, more.get("on_rdu", True), replicas.mode or "normal")
    select = (more.get("types", ()), (), None, None)
    assert program.only is not None
    hyperparameters = {"lr": more["lr"]} if "lr" in more else {}
    program.only.run(
        RunRequest(named(samples(rank, step)), (), hyperparameters, select, None, True, wish)
    )


def replicas_of(programs: list[Loaded], mode: str, work: Any) -> list[Any]:
    """Do something with several programs as the replicas of a job."""

    def one(communicator: Communicator) -> Any:
        program = programs[communicator.rank]
        job = Job(communicator, None, communicator)
        program.join(Replicas(program.device, mode, job))
        return work(program, communicator.rank)

    return run_ranks(len(programs), one, deadline=20)


def train_unevenly(programs: list[Loaded], counts: tuple[int, ...], **more: Any) -> None:
    """Train with a number of batches for each rank, then one more step of all."""
    by_initial, mode = more.pop("by_initial", True), more.pop("mode", "normal")

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=by_initial, throws=False):
            for step in range(counts[rank]):
                run(program, rank, step, **more)
        run(program, rank, max(counts), **more)

    assert replicas_of(programs, mode, work) == [None] * len(programs)


def trained(program: Loaded) -> dict[str, np.ndarray]:
    """Weights and optimizer states."""
    roles = (Role.WEIGHT, Role.OPTIMIZER_STATE)
    return {
        region.name: program.device.read(number)
        for number, region in enumerate(program.program.regions)
        if region.role in roles and program.device.pool.buffers[number] is not None
    }


def by_torch(optimizer: str, counts: tuple[int, ...], by_initial: bool) -> dict[str, torch.Tensor]:
    """The weights that the definition gives: mean gradients, of ranks without data zero."""
    torch.manual_seed(0)
    model = Deep()
    updates = OPTIMIZERS[optimizer](model)
    for step in range(max(counts) + 1):
        last = step == max(counts)
        active = [rank for rank, count in enumerate(counts) if last or step < count]
        model.zero_grad()
        for rank in active:
            loss, _ = model(**samples(rank, step))
            (loss / (len(counts) if by_initial else len(active))).backward()
        updates.step()
    return {path: p.detach().clone() for path, p in model.named_parameters()}


def assert_trained_as(programs: list[Loaded], expected: dict[str, torch.Tensor]) -> None:
    states = [trained(program) for program in programs]
    for other in states[1:]:
        assert states[0].keys() == other.keys()
        assert all(np.array_equal(states[0][name], other[name]) for name in other)
    for path, weight in expected.items():
        name = f"deep__{path.replace('.', '__')}"
        torch.testing.assert_close(
            torch.from_numpy(states[0][name]), weight, rtol=2e-6, atol=2e-7, msg=path
        )


@pytest.mark.parametrize("on_rdu", [True, False])
@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_ranks_without_data_take_part_with_zeros(folder, mode, by_initial, on_rdu):
    programs = [loaded(folder) for _ in COUNTS]
    train_unevenly(programs, COUNTS, mode=mode, by_initial=by_initial, on_rdu=on_rdu)
    assert_trained_as(programs, by_torch("sgd", COUNTS, by_initial))
