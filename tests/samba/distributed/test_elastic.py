"""torchrun's elastic agent starts replicas again, as many as before or not: training goes on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.processes import ended
from tests.samba.distributed.processes import (
    ROOT,
    clean_environment,
    free_port,
    group_exists,
    kill_group,
    worker,
)
from tests.samba.distributed.workers.elastic import (
    BATCH,
    EPOCHS,
    SAMPLES,
    data,
    dropping,
    plain,
    scheduler_of,
    world,
)

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ELASTIC = worker("elastic")[1:]
CONF = "join_timeout=90,keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one rank noted of one step."""

    generation: int
    size: int
    rank: int
    epoch: int
    position: int
    loss: float
    samples: tuple[int, ...]


def noted(folder: Path) -> list[Step]:
    steps = []
    for file in folder.glob("steps-*.txt"):
        for line in file.read_text().splitlines():
            *place, loss, samples = json.loads(line)
            generation, size, rank, epoch, position = place
            steps.append(
                Step(
                    generation=generation,
                    size=size,
                    rank=rank,
                    epoch=epoch,
                    position=position,
                    loss=loss,
                    samples=tuple(samples),
                )
            )
    return steps


@contextmanager
def started(command: list[str], folder: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent, its output in a file; in the end it is killed with its workers, as a host is."""
    with (folder / f"out-{time.monotonic_ns()}.txt").open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environment(CCL_TIMEOUT="60", **env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            for pid in (process.pid, *children(process.pid)):
                kill_group(pid)
            ended(process)


def children(pid: int) -> list[int]:
    """Processes that a process has started; torchrun's lead groups of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def said_in(folder: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in folder.glob("out-*.txt"))


def wait_for(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> None:
    """The process ends well, and with it all that it has started."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it goes on after {seconds:g} s\n{said_in(folder)}") from None
    assert code == 0, said_in(folder)
    end = time.monotonic() + 10
    while group_exists(process.pid):
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.1)


def until(folder: Path, size: int, steps: int, seconds: float = 120) -> None:
    """So many steps of so many replicas were made in the last generation."""
    end = time.monotonic() + seconds
    while True:
        found = noted(folder)
        last = max((step.generation for step in found), default=0)
        made = {(s.epoch, s.position) for s in found if s.generation == last and s.size == size}
        if len(made) >= steps:
            return
        assert time.monotonic() < end, said_in(folder)
        time.sleep(0.1)


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


def lasting(steps: list[Step]) -> list[list[Step]]:
    """The steps that checkpoints have kept, in order, with all their ranks."""
    begins = {
        g: min((s.epoch, s.position) for s in steps if s.generation == g)
        for g in sorted({s.generation for s in steps})
    }
    kept: dict[tuple[int, int], list[Step]] = {}
    for step in steps:
        later = [begins[g] for g in begins if g > step.generation]
        if not later or (step.epoch, step.position) < min(later):
            kept.setdefault((step.epoch, step.position), []).append(step)
    return [sorted(kept[place], key=lambda s: s.rank) for place in sorted(kept)]


def check_schedule(folder: Path) -> None:
    """Every sample was trained once in each epoch, with the losses and weights of plain torch."""
    made = lasting(noted(folder))
    for epoch in range(EPOCHS):
        dealt = [n for step in made for s in step if s.epoch == epoch for n in s.samples]
        assert sorted(dealt) == list(range(SAMPLES))
    torch.manual_seed(0)
    model, samples = plain(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    scheduler = scheduler_of(optimizer)
    for step in made:
        assert [s.rank for s in step] == list(range(step[0].size)), "all of its ranks noted it"
        optimizer.zero_grad()
        for of_rank in step:
            assert len(of_rank.samples) == BATCH
            numbers = list(of_rank.samples)
            loss, _ = model(samples["x"][numbers], samples["y"][numbers])
            assert of_rank.loss == pytest.approx(loss.item(), rel=2e-5)
            (loss / len(step)).backward()
        optimizer.step()
        scheduler.step()
    for path, weight in torch.load(folder / "end0.pt", weights_only=True).items():
        torch.testing.assert_close(weight, model.get_parameter(path).detach(), rtol=2e-5, atol=2e-6)


class Hosts:
    """Agents of one job of one host or two, each with a worker; the first keeps the rendezvous."""

    def __init__(self, folder: Path, last_call: int, **env: str) -> None:
        self.pef = world(plain).build().compile(folder)
        self.folder = folder / "job"
        self.folder.mkdir()
        self._port, self._last_call, self._env = free_port(), last_call, env

    def agent(self):
        conf = f"{CONF},last_call_timeout={self._last_call}"
        options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=job"]
        options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"]
        options += [f"--rdzv-conf={conf}", "--local-addr=127.0.0.1", "--monitor-interval=0.2"]
        command = [*TORCHRUN, *options, *ELASTIC, self.pef, str(self.folder), "1"]
        return started(command, self.folder, **self._env)


@pytest.mark.slow
def test_a_host_that_leaves(tmp_path):
    """The store at which the replicas met stays, with all that they have written."""
    hosts = Hosts(tmp_path, last_call=15)
    with hosts.agent() as first:
        with hosts.agent():
            until(hosts.folder, 2, 3)
        # That one was killed, with its worker: the other goes on alone.
        wait_for(first, hosts.folder, 150)
    sizes = {step.generation: step.size for step in noted(hosts.folder)}
    assert sizes == {1: 2, 2: 1}, said_in(hosts.folder)
    check_schedule(hosts.folder)


@pytest.mark.slow
def test_a_host_that_joins(tmp_path):
    """torch's agents have to make a store for each rendezvous: who joins does not find the old."""
    hosts = Hosts(tmp_path, last_call=1, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    with hosts.agent() as first:
        until(hosts.folder, 1, 3)
        with hosts.agent() as second:
            wait_for(first, hosts.folder, 150)
            wait_for(second, hosts.folder, 60)
    sizes = {step.generation: step.size for step in noted(hosts.folder)}
    assert sizes == {1: 1, 2: 2}, said_in(hosts.folder)
    check_schedule(hosts.folder)
