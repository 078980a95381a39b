"""Data of some replicas ends before that of others: torch's ``Join``; ranks are threads here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import samba
from emulator.replicas.comm.errors import DataEnded, Disagreement, OutOfStep
from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.comm.protocol import Communicator
from pef_schema.program import Role
from samba.distributed.errors import NotJoinable
from samba.distributed.job import Job
from samba.distributed.replicas import Replicas
from samba.errors import NotLoaded
from samba.session.hyperparams import random_state
from samba.session.joining import joining
from samba.session.loaded import Loaded
from samba.session.request import RunRequest
from tests.samba.distributed.test_replicas import noisy
from tests.samba.distributed.worlds import OPTIMIZERS, Deep, batch, compile_to, loaded, world
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
    for path, weight in expected.items():  # equal but for the rounding of a few operations
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


def test_adamw_counts_the_steps_of_others(tmp_path):
    compile_to(tmp_path, world("adamw"))
    programs = [loaded(tmp_path, "adamw") for _ in COUNTS]
    train_unevenly(programs, (1, 0, 3))
    assert_trained_as(programs, by_torch("adamw", (1, 0, 3), True))


def test_learning_rates_of_the_others_count(folder):
    """They were given to a run that a rank without data did not make."""
    programs = [loaded(folder), loaded(folder)]

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=True, throws=False):
            for step in range(2 - rank):
                run(program, rank, step, lr=0.1 / (1 + step))
        run(program, rank, 2, lr=0.1)  # what rank 1 was given last

    assert replicas_of(programs, "normal", work) == [None, None]
    first, second = map(trained, programs)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_random_streams_go_on_together(tmp_path):
    programs = [noisy(tmp_path), noisy(tmp_path)]
    train_unevenly(programs, (3, 1))
    first, second = (random_state(program.device) for program in programs)
    assert torch.equal(first, second)
    assert first[0, 1] > 0


def test_it_can_be_an_error_on_every_rank(folder):
    programs = [loaded(folder), loaded(folder)]

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=True, throws=True):
            for step in range(3 - rank):
                run(program, rank, step)

    for error in replicas_of(programs, "normal", work):
        assert isinstance(error, DataEnded)
        assert isinstance(error, RuntimeError)
        assert error.steps == {1: 2}
        assert "rank 1 after 2 runs" in str(error)


def test_even_data_is_none(folder):
    programs = [loaded(folder), loaded(folder)]

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=True, throws=True):
            run(program, rank, 0)

    assert replicas_of(programs, "inorder", work) == [None, None]


def test_other_arguments_are_named(folder):
    programs = [loaded(folder), loaded(folder)]

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=rank == 0, throws=False):
            raise AssertionError("nobody comes here")

    for error in replicas_of(programs, "normal", work):
        assert isinstance(error, Disagreement)
        assert error.facts == {"divide_by_initial_world_size": ("True", "False")}


def test_different_runs_are_named(folder):
    programs = [loaded(folder), loaded(folder), loaded(folder)]

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=True, throws=False):
            if rank < 2:
                run(program, rank, 0, on_rdu=rank == 0)

    for error in replicas_of(programs, "normal", work):
        assert isinstance(error, Disagreement)
        assert error.facts == {"reduce_on_rdu": ("True", "False", "True")}


def test_what_ranks_do_together_waits_until_all_are_done(folder):
    """Rank 0 sets tensors while rank 1 has no data and waits for runs."""
    programs = [loaded(folder), loaded(folder)]

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=True, throws=False):
            if rank == 0:
                with program.replicas.same_values(range(len(program.program.regions))):
                    pass

    for error in replicas_of(programs, "normal", work):
        assert isinstance(error, OutOfStep)
        assert "the ranks are out of step" in str(error)
    assert "rank 1 is in samba.session.join" in str(replicas_of(programs, "normal", work)[0])


class Trainer:
    """As much of an algorithm as matters here."""

    name = "qadam"


def test_algorithms_are_refused_by_name(folder):
    program = loaded(folder)

    def work(program: Loaded, rank: int) -> None:
        trainer: Any = Trainer()
        program.replicas.trainer = trainer
        with joining(program, by_initial_size=True, throws=False):
            pass

    found = replicas_of([program, loaded(folder)], "normal", work)
    assert all(isinstance(error, NotJoinable) for error in found)
    assert "Bagua's algorithm qadam" in str(found[0])


def test_alone_it_changes_nothing(folder):
    samba.session.reset()
    with pytest.raises(NotLoaded, match=r"join\(\)"):
        samba.session.join()
    program = loaded(folder)
    with samba.session.join():
        assert program.replicas.joint is None
    with samba.session.join(enable=False):
        pass
