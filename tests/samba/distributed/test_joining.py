"""Data of some replicas ends before that of others: torch's ``Join``; ranks are threads here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import samba
from emulator.replicas.comm.errors import DataEnded, Disagreement, OutOfStep
from samba.distributed.errors import NotJoinable
from samba.errors import NotLoaded
from samba.session.hyperparams import random_state
from samba.session.joining import joining
from samba.session.loaded import Loaded
from tests.samba.distributed.test_replicas import noisy
from tests.samba.distributed.worlds import (
    MODES,
    OPTIMIZERS,
    Deep,
    batch,
    compile_to,
    loaded,
    run_step,
    same,
    together,
    trained,
    world,
)

COUNTS = (4, 2, 3)
"""Batches of each rank."""


def samples(rank: int, step: int) -> dict[str, torch.Tensor]:
    return batch(8, 10 * rank + step)


def run(program: Loaded, rank: int, step: int, **how: Any) -> None:
    run_step(program, samples(rank, step), **how)


def joined(
    programs: list[Loaded], work: Callable[[Loaded, int], None], *, throws: bool = False
) -> list[Any]:
    """Do something with programs that have joined; what they return or raise."""

    def within(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=True, throws=throws):
            work(program, rank)

    return together(programs, within)


def train_unevenly(programs: list[Loaded], counts: tuple[int, ...], **more: Any) -> None:
    """Train with a number of batches for each rank, then one more step of all."""
    by_initial, mode = more.pop("by_initial", True), more.pop("mode", "normal")

    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=by_initial, throws=False):
            for step in range(counts[rank]):
                run(program, rank, step, **more)
        run(program, rank, max(counts), **more)

    assert together(programs, work, mode) == [None] * len(programs)


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
    assert same(*states)
    for path, weight in expected.items():  # equal but for the rounding of a few operations
        found = torch.from_numpy(states[0][f"deep__{path.replace('.', '__')}"])
        torch.testing.assert_close(found, weight, rtol=2e-6, atol=2e-7, msg=path)


QUICK = {("normal", True, True), ("inorder", False, True), ("optimal", True, False)}
EVERY = [
    pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow)
    for way in itertools.product(MODES, (True, False), (True, False))
]


@pytest.mark.parametrize(("mode", "by_initial", "on_rdu"), EVERY)
def test_ranks_without_data_take_part_with_zeros(folder, mode, by_initial, on_rdu):
    programs = [loaded(folder) for _ in COUNTS]
    train_unevenly(programs, COUNTS, mode=mode, by_initial=by_initial, reduce_on_rdu=on_rdu)
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
                run(program, rank, step, hyperparameters={"lr": 0.1 / (1 + step)})
        run(program, rank, 2, hyperparameters={"lr": 0.1})  # what rank 1 was given last

    assert together(programs, work) == [None, None]
    assert same(*map(trained, programs))


def test_random_streams_go_on_together(tmp_path):
    programs = [noisy(tmp_path), noisy(tmp_path)]
    train_unevenly(programs, (3, 1))
    first, second = (random_state(program.device) for program in programs)
    assert torch.equal(first, second)
    assert first[0, 1] > 0


def test_it_can_be_an_error_on_every_rank(folder):
    def work(program: Loaded, rank: int) -> None:
        for step in range(3 - rank):
            run(program, rank, step)

    for error in joined([loaded(folder), loaded(folder)], work, throws=True):
        assert isinstance(error, DataEnded)
        assert isinstance(error, RuntimeError)
        assert error.steps == {1: 2}
        assert "rank 1 after 2 runs" in str(error)


def test_even_data_is_none(folder):
    programs = [loaded(folder), loaded(folder)]
    assert joined(programs, lambda p, rank: run(p, rank, 0), throws=True) == [None, None]


def test_other_arguments_are_named(folder):
    def work(program: Loaded, rank: int) -> None:
        with joining(program, by_initial_size=rank == 0, throws=False):
            raise AssertionError("nobody comes here")

    for error in together([loaded(folder), loaded(folder)], work):
        assert isinstance(error, Disagreement)
        assert error.facts == {"divide_by_initial_world_size": ("True", "False")}


def test_different_runs_are_named(folder):
    def work(program: Loaded, rank: int) -> None:
        if rank < 2:
            run(program, rank, 0, reduce_on_rdu=rank == 0)

    for error in joined([loaded(folder) for _ in range(3)], work):
        assert isinstance(error, Disagreement)
        assert error.facts == {"reduce_on_rdu": ("True", "False", "True")}


def test_what_ranks_do_together_waits_until_all_are_done(folder):
    """Rank 0 sets tensors while rank 1 has no data and waits for runs."""

    def work(program: Loaded, rank: int) -> None:
        if rank == 0:
            with program.replicas.same_values(range(len(program.program.regions))):
                pass

    others = ("rank 1 is in samba.session.join", "rank 0 is in setting tensors")
    for error, other in zip(joined([loaded(folder), loaded(folder)], work), others, strict=True):
        assert isinstance(error, OutOfStep)
        assert f"the ranks are out of step: {other}" in str(error)


class Trainer:
    """As much of an algorithm as matters here."""

    name = "qadam"


def test_algorithms_are_refused_by_name(folder):
    def work(program: Loaded, rank: int) -> None:
        trainer: Any = Trainer()
        program.replicas.trainer = trainer
        with joining(program, by_initial_size=True, throws=False):
            pass

    found = together([loaded(folder), loaded(folder)], work)
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
