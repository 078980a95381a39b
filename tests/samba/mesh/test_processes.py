"""One program on the chips of two processes: the same numbers as on one chip, in each of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sambaflow.samba as samba
from emulator.replicas.comm.errors import Disagreement, PeerLost
from emulator.replicas.comm.inprocess import Hub, InProcess, run_ranks
from emulator.replicas.comm.protocol import Communicator
from samba.distributed import job as jobs, mesh
from samba.distributed.bagua.world import current_world
from samba.distributed.environment import Launch
from samba.distributed.errors import OneProgram
from samba.distributed.job import Job
from samba.distributed.mesh import MeshProcesses
from samba.distributed.settings import PRESENT
from samba.errors import ArgumentError
from tests.samba.distributed.processes import Ended, all_well, clean_environment, run_replicas
from tests.samba.mesh.test_mesh import ROOT, check, trained
from tests.samba.mesh.worker import ready
from tests.warm import finished, for_children

DEADLINE = 10
"""Seconds that a process waits for another one where one of them is at fault."""
WAYS = ("4:weight", "4:batch", "2:weight", "2:batch")


def trained_by_two(model: str, folder: Path, *ways: str) -> list[list[dict[str, Any]]]:
    """What each of two processes says of each way."""
    command = [sys.executable, "-m", "tests.samba.mesh.worker", model, str(folder), *ways]
    ended = run_replicas(2, command, seconds=500, env={"CCL_TIMEOUT": "120"})
    all_well(ended)
    return [
        [json.loads(line) for line in end.out.splitlines() if line.startswith("{")] for end in ended
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "gpt"])
def test_two_processes(model: str, tmp_path: Path) -> None:
    """Of one chip each, and of two each."""
    [one] = trained(model, tmp_path, "1:none")
    first, second = trained_by_two(model, tmp_path, *WAYS)
    assert len(first) == len(second) == len(WAYS)
    check([one, *first])
    for way, here, there in zip(WAYS, first, second, strict=True):
        assert here["losses"] == there["losses"]
        assert here["weights"] == there["weights"]
        # Each says what its own chips hold.
        held = np.array([here["bytes"], there["bytes"]])
        chips = int(way[0])
        assert held.shape == (2, chips)
        assert (held > 0).sum(0).tolist() == [1] * chips
        of_one = one["kept"] / (chips if way.endswith("weight") else 1)
        assert held.max() <= 1.1 * of_one


@pytest.mark.slow
def test_section_by_section(tmp_path: Path) -> None:
    """Activations lie on the chips between sections."""
    one, *_ = trained("lenet", tmp_path, "1:none:o0")
    first, second = trained_by_two("lenet", tmp_path, "2:weight:o0", "2:batch:o0")
    check([one, *first])
    assert [w["losses"] for w in first] == [w["losses"] for w in second]


@pytest.mark.slow
def test_a_script_under_the_launcher(tmp_path: Path) -> None:
    """The command changes, not the script; the first process writes a checkpoint for one chip."""
    lenet = [sys.executable, "examples/lenet.py"]

    def printed(command: list[str]) -> str:
        env = clean_environment(**for_children())
        done = finished(command, cwd=ROOT, env=env, seconds=400)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed([*lenet, "compile", "--output-folder", str(tmp_path), "--pef-name", "lenet"])
    run = ["run", "--pef", str(tmp_path / "lenet" / "lenet.pef"), "-e", "1"]
    losses = [float(found) for found in re.findall(r"Loss: ([0-9.]+)", printed([*lenet, *run]))]
    launch = [sys.executable, "-m", "samba", "launch", "-n", "2", *lenet[1:], *run]
    chips = ["--n-chips", "4", "--tensor-parallel", "weight", "--ckpt-dir", str(tmp_path)]
    two = printed([*launch, *chips])
    for rank in (0, 1):
        own = [line for line in two.splitlines() if line.startswith(f"[{rank}] ")]
        found = [float(n) for n in re.findall(r"Loss: ([0-9.]+)", "\n".join(own))]
        assert found == pytest.approx(losses, abs=2e-4)
    assert two.count("Checkpoint: ") == 1
    [checkpoint] = tmp_path.glob("*.pt")
    scored = printed([*lenet, *run, "--test", "--init-ckpt-path", str(checkpoint)])
    assert float(re.findall(r"Loss: ([0-9.]+)", scored)[0]) == pytest.approx(losses[-1], abs=2e-4)


# -- what goes wrong -----------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEF, and another one."""
    found = tmp_path_factory.mktemp("pefs")
    for name, level in (("wide", "o3"), ("other", "o0")):
        model, inputs, optim = ready("wide")
        config = {"output_folder": str(found), "optim_level": level}
        pef = samba.session.compile(model, inputs, optim, name=name, config_dict=config)
        shutil.move(pef, found / f"{name}.pef")
    return found


def ended_by(folder: Path, fault: str, bad: int) -> list[Ended]:
    """How two processes end of which one does something wrong."""
    command = [sys.executable, "-m", "tests.samba.mesh.faulty", str(folder), fault, str(bad)]
    return run_replicas(2, command, seconds=120, env={"CCL_TIMEOUT": str(DEADLINE)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "bad"),
    [("kill", 1), ("kill", 0), ("kill-inside", 1), ("stop", 1), ("stop-inside", 1), ("raise", 0)],
)
def test_a_process_that_fails(folder: Path, fault: str, bad: int) -> None:
    """The other one ends in time, and names the first."""
    ended = ended_by(folder, fault, bad)
    assert "now" in ended[bad].out, ended[bad].err
    began = float(ended[bad].out.split("now", 1)[1].split()[0])
    other = ended[1 - bad]
    assert other.code not in (0, -9), other.err
    assert other.time - began < DEADLINE + 10
    assert "trained" not in other.out
    assert not other.left
    assert f"rank {bad}" in other.err, other.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("pef", "utils.trace_graph: the processes differ.\n  PEF: rank"),
        ("chips", "--n-chips: the processes differ.\n  --n-chips: rank"),
        ("inputs", "the processes differ.\n  values of x: rank"),
        ("read", "the processes differ.\n  next operation: rank"),
    ],
)
def test_processes_that_do_not_do_the_same(folder: Path, fault: str, words: str) -> None:
    """Both say so, at once."""
    for end in ended_by(folder, fault, 1):
        assert end.code == 1, end.err
        assert "Disagreement" in end.err
        assert words in end.err
        assert not end.left


@pytest.mark.slow
def test_without_a_fault_it_ends_well(folder: Path) -> None:
    ended = ended_by(folder, "none", 1)
    all_well(ended)
    assert ["trained True" in end.out for end in ended] == [True, False]


# -- in threads ----------------------------------------------------------------


def in_two(work: Callable[[MeshProcesses], Any]) -> list[Any]:
    """What two processes come to, or raise; each is a thread here."""

    def of_rank(communicator: Communicator) -> Any:
        return work(MeshProcesses(Job(communicator, None, communicator, one_program=True)))

    return run_ranks(2, of_rank, deadline=20)


def test_a_run_of_both() -> None:
    x = np.arange(6.0)
    assert in_two(lambda p: p.run("a run", lambda: p.rank, {"x": x})) == [0, 1]


def test_inputs_that_differ() -> None:
    def work(processes: MeshProcesses) -> None:
        own = {"x": np.zeros(3), "y": np.full(3, processes.rank)}
        processes.run("a run", list, own)

    for error in in_two(work):
        assert isinstance(error, Disagreement)
        assert [*error.facts] == ["values of y"]
        assert str(error).startswith("a run: the processes differ.")


@pytest.mark.parametrize("every", [False, True])
def test_inputs_are_compared_at_first_or_always(
    every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SN_DP_CHECK", str(int(every)))

    def work(processes: MeshProcesses) -> str:
        for _ in range(2):
            processes.run("a run", list, {"x": np.zeros(3)})
        return processes.run("a run", lambda: "ran", {"x": np.full(3, processes.rank)})

    found = in_two(work)
    if every:
        assert all(isinstance(error, Disagreement) for error in found)
    else:
        assert found == ["ran", "ran"]


def test_one_runs_while_the_other_reads() -> None:
    def work(processes: MeshProcesses) -> None:
        if processes.rank == 0:
            processes.run("a run", list, {})
        else:
            processes.gather("reading w", np.zeros(3))

    for error in in_two(work):
        assert isinstance(error, Disagreement)
        assert error.facts == {"next operation": ("a run", "reading w")}


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bool", "uint32", "bfloat16"])
def test_the_first_process_has_the_values(shape: tuple[int, ...], dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def work(processes: MeshProcesses) -> np.ndarray:
        return processes.same("writing", np.full(shape, 1 - processes.rank, kind))

    for found in in_two(work):
        assert (found.shape, found.dtype) == (shape, kind)
        assert (found == np.ones(shape, kind)).all()


def test_parts_of_both() -> None:
    for found in in_two(lambda p: p.gather("reading w", np.full((2, 1), p.rank))):
        assert found.tolist() == [[[0], [0]], [[1], [1]]]


def test_a_process_that_is_lost_within_a_run() -> None:
    def lose() -> None:
        raise RuntimeError("Gloo AllReduce failed: Connection closed by peer")

    for error in in_two(lambda p: p.run("a run", lose, {})):
        assert isinstance(error, PeerLost)


def test_errors_of_a_run_itself_stay() -> None:
    def fail() -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED")

    for error in in_two(lambda p: p.run("a run", fail, {})):
        assert type(error) is RuntimeError


def test_what_is_for_replicas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    communicator = InProcess(Hub(1), 0)
    job = Job(communicator, None, communicator, one_program=True)
    monkeypatch.setattr(PRESENT, "value", job)
    with pytest.raises(OneProgram, match="joining replicas: found 1 processes that are chips"):
        jobs.start()
    with pytest.raises(OneProgram, match="Bagua"):
        current_world()
    assert jobs.start(one_program=True) is job


# -- without processes ---------------------------------------------------------


def test_chips_that_processes_do_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(launcher="slurm", rank=0, size=3, local_rank=0, local_size=3)
    monkeypatch.setattr(mesh, "detect", lambda: launch)
    with pytest.raises(ArgumentError, match=r"4 chips in 3 processes \(slurm\)") as raised:
        mesh.processes_of_chips(4, "weight")
    assert "a multiple of 3" in str(raised.value)


@pytest.mark.parametrize(
    ("count", "split", "parallel"), [(1, "weight", False), (4, "none", False), (4, "weight", True)]
)
def test_no_mesh_is_asked_for(
    count: int, split: str, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nobody is met: who trains alone is told where, and replicas have chips of their own."""
    launch = Launch(launcher="torch", rank=0, size=2, local_rank=0, local_size=2)
    monkeypatch.setattr(mesh, "detect", lambda: launch)
    assert mesh.processes_of_chips(count, split, parallel=parallel) is None
