"""Replicas under torchrun's elastic agent: what they note, and what plain torch makes of that."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
import torch

from tests import warm
from tests.processes import SECONDS_TO_END, ended
from tests.samba.distributed.listening import tree
from tests.samba.distributed.processes import (
    ROOT,
    clean_environment,
    group_exists,
    kill_group,
)
from tests.samba.distributed.workers.elastic import (
    BATCH,
    EPOCHS,
    SAMPLES,
    adamw,
    data,
    plain,
    scheduler_of,
)


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
            said = dict(zip((field.name for field in fields(Step)), json.loads(line), strict=True))
            steps.append(Step(**said | {"samples": tuple(said["samples"])}))
    return steps


@contextmanager
def started(
    command: list[str], folder: Path, *, host: int | None = None, **env: str
) -> Iterator[warm.Warm]:
    """An agent, its output in a file; in the end it and its workers are killed, as groups.

    It is forked, and so are its workers.

    Args:
        command: The command, one of Python.
        folder: Where its output goes.
        host: The first process of the host that it runs on, if it has one of its own.
        env: Further variables.
    """
    with (folder / f"out-{time.monotonic_ns()}.txt").open("wb") as out:
        process = warm.start(
            command,
            cwd=ROOT,
            env=clean_environment(**{"CCL_TIMEOUT": "60", **warm.for_children(host), **env}),
            stdout=out.fileno(),
            stderr=out.fileno(),
            new_session=True,
            host=host,
        )
        try:
            yield process
        finally:
            for pid in tree(process.pid):
                kill_group(pid)
            ended(process)


def said_in(folder: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in folder.glob("out-*.txt"))


def wait_for(process: warm.Warm, folder: Path, seconds: float) -> None:
    """The process ends well, and with it all that it has started."""
    try:
        code = process.wait(seconds)
    except TimeoutExpired:
        raise AssertionError(f"it goes on after {seconds:g} s\n{said_in(folder)}") from None
    assert code == 0, said_in(folder)
    end = time.monotonic() + SECONDS_TO_END
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
    optimizer = adamw(model)  # on the host: torch's, with the defaults of samba.optim
    scheduler = scheduler_of(optimizer)
    for step in made:
        assert [s.rank for s in step] == list(range(step[0].size)), "all of its ranks noted it"
        optimizer.zero_grad()
        for of_rank in step:
            assert len(of_rank.samples) == BATCH
            numbers = list(of_rank.samples)
            loss, _ = model(samples["x"][numbers], samples["y"][numbers])
            where = f"{of_rank}, torch has a loss of {loss.item()}\n{made}"
            assert of_rank.loss == pytest.approx(loss.item(), rel=2e-5), where
            (loss / len(step)).backward()
        optimizer.step()
        scheduler.step()
    # An epoch of steps, each of which adds to the rounding of those before it.
    for path, weight in torch.load(folder / "end0.pt", weights_only=True).items():
        torch.testing.assert_close(weight, model.get_parameter(path).detach(), rtol=2e-5, atol=2e-6)
