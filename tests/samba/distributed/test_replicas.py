"""What ``trace_graph`` and ``session.run`` do with replicas; ranks are threads here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import samba
from emulator.native.library import leave_native_out, native_library
from emulator.replicas.comm.errors import DataParallelError, Disagreement
from emulator.replicas.comm.inprocess import Hub, InProcess, run_ranks
from emulator.replicas.comm.protocol import Communicator
from pef_schema.program import Role
from samba.distributed import replicas as replicas_module
from samba.distributed.errors import NotDataParallel
from samba.distributed.job import Job
from samba.distributed.replicas import Replicas
from samba.errors import ArgumentError
from samba.session.loaded import Loaded
from tests.api.covers import covers
from tests.samba.distributed.worlds import (
    BATCH,
    batch,
    compiled,
    job_of,
    loaded,
    newly_loaded,
    part_of,
    run_step,
    same,
    together,
    trained,
)
from tests.samba.worlds import World, told


def train(program: Loaded, rank: int, size: int, **how: Any) -> None:
    """One step of a program on its part of a batch."""
    run_step(program, part_of(batch(BATCH * size), rank, size), **how)


def one_of_two(program: Loaded, mode: str | None = None, **more: Any) -> Loaded:
    """A program that is rank 0 of a job whose other replica does nothing."""
    program.join(Replicas(program.device, mode, job_of(InProcess(Hub(2), 0, **more))))
    return program


def trained_by_sgd(model: type[torch.nn.Module]) -> World:
    """Replicas of a model."""
    return World(
        name=model.__name__.lower(),
        model=model,
        inputs=lambda: batch(BATCH),
        optimizer=lambda m: samba.optim.SGD(m.parameters(), lr=0.1),
        config={"data_parallel": True},
    )


@covers("samba.session.run(data_parallel, data_parallel_mode, reduce_on_rdu)")
@pytest.mark.parametrize("on_rdu", [True, False])
@pytest.mark.parametrize("mode", ["normal", "inorder", "optimal"])
def test_replicas_stay_the_same(folder, mode, on_rdu):
    programs = [loaded(folder), loaded(folder), loaded(folder)]
    before = trained(programs[0], (Role.WEIGHT,))
    results = together(programs, lambda p, rank: train(p, rank, 3, reduce_on_rdu=on_rdu), mode)
    assert results == [None] * 3
    assert same(*map(trained, programs))
    assert not same(before, trained(programs[0], (Role.WEIGHT,)))


class Turned(torch.nn.Module):
    """A complex and a real layer; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.nn.Linear(6, 4, dtype=torch.complex64)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.linear(self.turn(x * 1j).abs()), y)


@pytest.mark.slow
@pytest.mark.parametrize("on_rdu", [True, False])
def test_complex_gradients_are_averaged(tmp_path, on_rdu):
    world = trained_by_sgd(Turned)
    programs = [newly_loaded(world, tmp_path) for _ in range(2)]
    together(programs, lambda p, rank: train(p, rank, 2, reduce_on_rdu=on_rdu))
    host = world.build().host
    losses = [host(**part_of(batch(2 * BATCH), rank, 2)) for rank in range(2)]
    (sum(losses) / 2).backward()
    torch.optim.SGD(host.parameters(), lr=0.1).step()
    for program in programs:
        held = {s.name: program.device.read(s.region) for s in program.program.symbols}
        for path, parameter in host.named_parameters():
            got = torch.from_numpy(held[f"turned__{path.replace('.', '__')}"])
            torch.testing.assert_close(got, parameter.detach())


class Noisy(torch.nn.Module):
    """Batch norm and dropout; returns the loss and what dropout has left."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)
        self.linear = torch.nn.Linear(6, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left = self.drop(self.norm(x))
        return torch.nn.functional.cross_entropy(self.linear(left), y), left


def noisy(folder) -> Loaded:
    return newly_loaded(trained_by_sgd(Noisy), folder)


def left_by_dropout(program: Loaded) -> np.ndarray:
    graph = program.program.graphs[0]
    return program.device.read(graph.outputs[1].region)


def test_replicas_draw_masks_of_their_own(folder):
    alone, *programs = [noisy(folder) for _ in range(4)]
    forward = {"types": ("fwd",), "data_parallel": False}
    train(alone, 0, 1, **forward)
    together(programs, lambda p, _: train(p, 0, 1, **forward))  # the same data for all
    masks = [left_by_dropout(p) == 0 for p in programs]
    assert np.array_equal(masks[0], left_by_dropout(alone) == 0), "rank 0 draws as one device does"
    for first in range(3):
        for second in range(first):
            same = np.mean(masks[first] == masks[second])
            assert 0.2 < same < 0.8, "half of 48 elements, as masks that know nothing of each other"


def test_weights_are_the_same_and_running_statistics_are_not(folder):
    programs = [noisy(folder), noisy(folder)]
    together(programs, lambda p, rank: train(p, rank, 2))
    assert same(*map(trained, programs))
    means = [p.device.read(p.device.region_of("noisy__norm__running_mean")) for p in programs]
    assert not np.array_equal(*means)


def test_without_reduce_they_do_not(folder):
    programs = [loaded(folder), loaded(folder)]
    types = ("fwd", "bckwd", "opt")
    together(programs, lambda p, rank: train(p, rank, 2, types=types))
    assert not same(*(trained(program, (Role.WEIGHT,)) for program in programs))


def test_running_without_reduce_is_told_once(folder, caplog):
    program = one_of_two(loaded(folder))
    for _ in range(2):
        train(program, 0, 1, types=("fwd", "bckwd", "opt"))
        train(program, 0, 1, data_parallel=False)
    lines = told(caplog)
    assert len(lines) == 2, lines
    assert "without REDUCE" in lines[0]
    assert "without data_parallel=True in one of 2 replicas" in lines[1]


def test_who_changes_no_weights_is_told_nothing(folder, caplog):
    """Forward and backward passes leave weights alone, and scripts may reduce by themselves."""
    program = one_of_two(loaded(folder))
    for types in (("fwd",), ("bckwd",)):
        train(program, 0, 1, types=types, data_parallel=False)
    assert told(caplog) == []
    train(program, 0, 1, types=("opt",), data_parallel=False)
    (line,) = told(caplog)
    assert "weights will diverge" in line


def test_a_launched_process_that_trains_alone_is_told(folder, caplog, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    loaded(folder)
    (line,) = told(caplog)
    assert "a launcher (variables of torch) has started 2 processes" in line
    assert "--data-parallel" in line
    caplog.clear()
    monkeypatch.setenv("RANK", "7")  # of 2: a contradiction, but nobody asked
    loaded(folder)
    monkeypatch.setenv("WORLD_SIZE", "1")
    loaded(folder)
    assert told(caplog) == []


def test_forward_alone_does_not_communicate(folder):
    program = one_of_two(loaded(folder), "normal", deadline=0.1)
    train(program, 0, 1, types=("fwd",))
    with pytest.raises(DataParallelError):
        train(program, 0, 1, types=("reduce",))


def test_one_replica_runs_the_same_plan_and_is_told_once(folder, caplog):
    program = loaded(folder)
    runner = program.only
    assert runner is not None
    train(program, 0, 1, data_parallel=False)
    plan = runner._last.plan
    for _ in range(2):
        train(program, 0, 1)
        assert runner._last.plan is plan
    assert len(told(caplog)) == 1
    assert "one replica" in told(caplog)[0]


def test_a_pef_without_buckets_is_refused_by_the_flag(folder):
    program = one_of_two(loaded(folder, data_parallel=False))
    with pytest.raises(NotDataParallel, match="--data-parallel"):
        train(program, 0, 1)
    train(program, 0, 1, types=("fwd",))


def test_run_must_be_given_the_mode_of_trace_graph(folder):
    made = compiled(folder)
    made.trace(data_parallel_mode="inorder")
    made.run(data_parallel=True, data_parallel_mode="inorder")
    with pytest.raises(ArgumentError, match="'normal', expected 'inorder'"):
        made.run(data_parallel=True)
    with pytest.raises(ValueError, match="data_parallel_mode"):
        made.run(data_parallel=True, data_parallel_mode="optimal")
    made.run()  # the mode says nothing about a run that is not parallel


def test_mismatch_of_modes_is_named(folder):
    program = loaded(folder)
    pef = compiled(folder).pef

    def agree(communicator: Communicator) -> None:
        mode = "optimal" if communicator.rank == 2 else "normal"
        Replicas(program.device, mode, job_of(communicator)).agree(pef)

    for error in run_ranks(3, agree):
        assert isinstance(error, Disagreement)
        assert error.ranks == (2,)
        assert error.facts == {"data_parallel_mode": ("normal", "normal", "optimal")}
        assert "rank 2: optimal" in str(error)


def test_mismatch_of_pefs_is_named(folder):
    programs = [loaded(folder), loaded(folder, data_parallel=False)]
    pefs = [compiled(folder).pef, compiled(folder, data_parallel=False).pef]

    def agree(communicator: Communicator) -> None:
        rank = communicator.rank
        Replicas(programs[rank].device, "normal", job_of(communicator)).agree(pefs[rank])

    for error in run_ranks(2, agree):
        assert isinstance(error, Disagreement)
        assert set(error.facts) == {"PEF", "gradient buckets"}


def test_replicas_on_two_processors_take_the_same_kernels(folder, caplog, monkeypatch):
    program = loaded(folder)
    pef = compiled(folder).pef
    own = ["XLA alone", "oneDNN 3 on avx2"]

    def agree(communicator: Communicator) -> None:
        monkeypatch.setattr(replicas_module, "kernels_here", lambda: own.pop())
        Replicas(program.device, "normal", job_of(communicator)).agree(pef)

    try:
        assert run_ranks(2, agree) == [None, None]
        assert native_library() is None
    finally:
        leave_native_out(False)
    assert "replicas would use different kernels (rank " in caplog.text
    assert ": oneDNN 3 on avx2" in caplog.text
    assert "so all use XLA's own" in caplog.text
    own += ["oneDNN 3 on avx2"] * 2
    caplog.clear()
    assert run_ranks(2, agree) == [None, None]
    assert not caplog.text


def test_mismatch_of_sections_is_named_before_anything_runs(folder):
    programs = [loaded(folder), loaded(folder)]
    before = trained(programs[1])
    types = [(), ("fwd", "bckwd", "reduce")]
    for error in together(programs, lambda p, rank: train(p, rank, 2, types=types[rank])):
        assert isinstance(error, Disagreement)
        assert set(error.facts) == {"sections"}
    assert same(before, trained(programs[1]))


def test_setting_tensors_gives_all_the_values_of_rank_0(folder):
    programs = [loaded(folder), loaded(folder)]
    name = programs[0].program.symbols
    weight = next(s.name for s in name if s.grad_region >= 0)
    shape = programs[0].program.regions[programs[0].device.region_of(weight)].shape

    def setting(program: Loaded, rank: int) -> None:
        program.write(weight, torch.full(shape, float(rank + 5)))
        program.write("x", torch.full((BATCH, 6), float(rank)))

    samba.session.start_samba_profile()
    try:
        assert together(programs, setting) == [None, None]
    finally:
        samba.session.end_samba_profile()
    assert "PyRT_SET_TENSORS_BROADCAST" in samba.session.profiler.names
    for rank, program in enumerate(programs):
        assert (program.read(weight) == 5.0).all()
        assert (program.read("x") == float(rank)).all()  # inputs are a replica's own


def test_getting_tensors_of_several_replicas_is_an_event_of_its_own(folder):
    programs = [loaded(folder), loaded(folder)]
    weight = next(s.name for s in programs[0].program.symbols if s.grad_region >= 0)
    profiler = samba.session.profiler
    samba.session.start_samba_profile()
    try:
        programs[0].read(weight)
        assert profiler.names == ["PyRT_GET_TENSORS"]  # alone
        together(programs, lambda program, rank: program.read(weight))
    finally:
        profiler.stop_profile()
    assert len(profiler.get_iter_times("PyRT_GET_TENSORS_GATHER")) == 2
    assert len(profiler.get_iter_times("PyRT_GET_TENSORS")) == 3


def test_loading_gives_all_the_weights_and_buffers_of_rank_0(folder):
    programs = [loaded(folder), loaded(folder)]

    def reload(program: Loaded, rank: int) -> None:
        with torch.no_grad():
            for tensor in [*program.model.parameters(), *program.model.buffers()]:
                tensor.fill_(float(rank + 1))
        program.to_device()

    assert together(programs, reload) == [None, None]
    for program in programs:
        weights = trained(program, (Role.WEIGHT,))
        assert weights and all((values == 1.0).all() for values in weights.values())
        assert (program.read("deep__scale") == 1.0).all()


def test_a_failed_reduction_names_step_and_bucket(folder):
    programs = [loaded(folder), loaded(folder)]

    def half(program: Loaded, rank: int) -> None:
        train(program, rank, 2)
        if rank == 1:
            raise ValueError("enough")
        train(program, rank, 2)

    first, second = together(programs, half)
    assert isinstance(second, ValueError)
    assert isinstance(first, DataParallelError)
    assert first.ranks == (1,)
    assert "step 2" in str(first)


def test_after_a_failure_runs_are_refused(folder):
    program = one_of_two(loaded(folder), "normal", deadline=0.1)
    with pytest.raises(DataParallelError, match="rank 1"):
        train(program, 0, 2)
    with pytest.raises(DataParallelError, match="failed before"):
        train(program, 0, 2)


def test_notes_are_compared_in_every_run_when_asked_for(folder, monkeypatch):
    counted = []
    monkeypatch.setattr(Job, "agree", lambda self, when, facts: counted.append(when))
    for wanted, extra in (("0", 0), ("1", 2)):
        monkeypatch.setenv("SN_DP_CHECK", wanted)
        counted.clear()
        programs = [loaded(folder), loaded(folder)]
        together(programs, lambda p, rank: [train(p, rank, 2) for _ in range(4)])
        of_steps = [when for when in counted if "step" in when]
        assert len(of_steps) == 2 * (replicas_module._CHECKED_RUNS + extra)
