"""A replica whose training is interrupted.

    python -m tests.samba.distributed.workers.interrupted FOLDER WHAT STEPS [COMBINATION ...]

WHAT is storm (interrupts at random times; the script goes on), ctrl-c (train until a signal comes,
then save), sigterm (its handler saves and exits) or hang (rank 1 stops, rank 0 gets two SIGINT). A
combination is MODE:ON_DEVICE, or the name of one of Bagua's algorithms.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import samba
from emulator.held_signals import HELD
from emulator.replicas.comm import worker as waiting
from emulator.replicas.comm.errors import StepAbandoned
from samba.distributed import bagua, job as jobs
from samba.distributed.job import Job
from tests.samba.distributed.worlds import compiled, share_of, state_of
from tests.samba.session.interrupts import Storm, deleted
from tests.samba.worlds import Tensors, sharing_executables


class Replica:
    """A program that trains in one combination.

    Args:
        folder: Where its PEF is.
        job: The other replicas.
        combination: How to train.
    """

    def __init__(self, folder: Path, job: Job, combination: str) -> None:
        samba.session.reset()
        mode, _, on_device = combination.partition(":")
        algorithm = None if on_device else bagua.Algorithm.init(mode)
        self.scene = compiled(folder)
        self._how: dict[str, Any] = {
            "data_parallel": True,
            "reduce_on_rdu": on_device == "1",
            "data_parallel_mode": mode if algorithm is None else "normal",
        }
        self.scene.trace(data_parallel_mode=self._how["data_parallel_mode"])
        if algorithm is not None:
            bagua.with_session(algorithm)
        self._job = job

    def step(self, number: int) -> None:
        """One step."""
        outputs = self.scene.model.output_tensors
        samba.session.run(share_of(self._job, number), outputs, **self._how)

    def state(self) -> Tensors:
        """Weights, buffers and optimizer state on the device."""
        assert not deleted()
        return state_of(self.scene)


def same(found: Tensors, expected: Tensors) -> bool:
    """Whether all values are the same, and none is left out."""
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def storm(folder: Path, job: Job, steps: int, combinations: list[str]) -> None:
    """Train without and with interrupts, and compare."""
    for number, combination in enumerate(combinations):
        replica = Replica(folder, job, combination)
        for step in range(steps):
            replica.step(step)
        expected = replica.state()

        replica = Replica(folder, job, combination)
        weather = Storm(2 * number + job.rank, 6e-3, by_thread=False)
        with weather.raging():
            for step in range(steps):
                while samba.session.counters.runs == step:
                    try:
                        weather.armed = True
                        replica.step(step)
                    except KeyboardInterrupt:
                        replica.state()
                    finally:
                        weather.armed = False
        assert samba.session.counters.runs == steps
        assert same(replica.state(), expected), combination
        print("interrupts", weather.count, flush=True)


def until_a_signal(folder: Path, job: Job, steps: int, combination: str, what: str) -> None:
    """Train until the launcher passes a signal on, and save then."""
    replica = Replica(folder, job, combination)
    history = [replica.state()]
    for step in range(steps):
        replica.step(step)
        history.append(replica.state())
    replica = Replica(folder, job, combination)

    def save() -> None:
        runs = samba.session.counters.runs
        assert same(replica.state(), history[runs]), runs
        samba.session.to_cpu(replica.scene.model, replica.scene.optimizer)
        torch.save(replica.scene.model.state_dict(), folder / f"{what}-{job.rank}.pt")
        print("saved", runs, flush=True)

    def save_and_exit(number: int, frame: Any) -> None:
        save()
        sys.exit(0)

    if what == "sigterm":
        signal.signal(signal.SIGTERM, save_and_exit)
    print("now", flush=True)
    try:
        for step in range(steps):
            replica.step(step)
            time.sleep(0.01)
    except KeyboardInterrupt:
        save()
        return
    raise AssertionError("no signal came")


class Looks:
    """What was held back, for who waits: counts how often it looks once two signals were sent.

    Args:
        sent: Signals that were sent.
    """

    def __init__(self, sent: list[int]) -> None:
        self._sent, self.count = sent, 0

    def insisted(self) -> int:
        self.count += len(self._sent) == 2
        return HELD.insisted()

    def obeyed(self, number: int) -> None:
        HELD.obeyed(number)


def hang(folder: Path, job: Job) -> None:
    """Rank 0 waits for a rank that does not come, and is interrupted twice."""
    replica = Replica(folder, job, "inorder:1")
    for step in range(2):
        replica.step(step)
    before = replica.state()
    if job.rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    sent: list[int] = []
    waiting.HELD = looks = Looks(sent)

    def send() -> None:
        for number in range(2):
            time.sleep(1)
            sent.append(number)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()
    try:
        replica.step(2)
    except StepAbandoned as error:
        assert len(sent) == 2 and looks.count <= 10, (sent, looks.count)  # one takes 0.2 s
        assert isinstance(error, KeyboardInterrupt)
        print(error, *error.__notes__, flush=True)
    weights = {name for name, _ in replica.scene.model.named_parameters()}
    after = replica.state()
    assert all(torch.equal(after[name], before[name]) for name in weights)
    assert samba.session.counters.runs == 2
    print("weights are there", flush=True)


def main(folder: Path, what: str, steps: int, combinations: list[str]) -> None:
    job = jobs.start()
    assert job is not None
    if what == "storm":
        storm(folder, job, steps, combinations)
    elif what == "hang":
        hang(folder, job)
    else:
        until_a_signal(folder, job, steps, combinations[0], what)


if __name__ == "__main__":
    with sharing_executables():
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
