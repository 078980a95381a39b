"""Signals around a step of several replicas: all of them make it, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from emulator.held_signals import HELD
from emulator.replicas.comm.errors import DataParallelError, StepAbandoned
from emulator.replicas.comm.worker import CommThread
from tests.processes import SECONDS, joined, line_of, said
from tests.samba.distributed.processes import (
    ROOT,
    all_well,
    clean_environment,
    in_place,
    launch,
    run_replicas,
    worker,
)
from tests.warm import for_children

INTERRUPTED = worker("interrupted")


@pytest.mark.slow
def test_300_random_interrupts_of_replicas(folder):
    """Of two replicas, which compare with themselves."""
    modes = [f"{mode}:{on}" for mode in ("normal", "inorder", "optimal") for on in (0, 1)]
    algorithms = ["gradient_allreduce", "decentralized", "bytegrad"]
    command = [*INTERRUPTED, str(folder), "storm", "60", *modes, *algorithms]
    ended = run_replicas(2, command, seconds=300, env={"CCL_TIMEOUT": "60"})
    all_well(ended)
    assert sum(int(line.split()[1]) for e in ended for line in e.out.splitlines()) >= 300


def launched(folder: Path, what: str, number: signal.Signals, after: float) -> tuple[int, str]:
    """Start two replicas with the launcher, and send it a signal; returns its end and output."""
    process = subprocess.Popen(
        in_place([*launch(2), *INTERRUPTED[1:], str(folder), what, "150", "inorder:0"]),
        env=clean_environment(CCL_TIMEOUT="60", **for_children()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    out = ""
    while out.count(" now") < 2:
        line = line_of(process)
        assert line, out
        out += line
    time.sleep(after)
    process.send_signal(number)
    rest, _ = said(process)
    return process.returncode, out + rest


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.05, 0.123, 0.3])
@pytest.mark.parametrize(
    ("what", "number"), [("ctrl-c", signal.SIGINT), ("sigterm", signal.SIGTERM)]
)
def test_the_launcher_lets_replicas_save(folder, what, number, after):
    code, out = launched(folder, what, number, after)
    assert code == 128 + number, out
    steps = [int(line.split()[-1]) for line in out.splitlines() if " saved " in line]
    assert len(steps) == 2 and steps[0] == steps[1] > 0, out
    saved = [torch.load(folder / f"{what}-{rank}.pt") for rank in range(2)]
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


@pytest.mark.slow
def test_a_second_ctrl_c_while_a_peer_hangs(folder):
    first, second = run_replicas(
        2, INTERRUPTED, str(folder), "hang", "0", seconds=SECONDS, env={"CCL_TIMEOUT": "60"}
    )
    assert second.code == -signal.SIGKILL, "it was stopped"
    assert "weights are there" in first.out, first.out + first.err
    assert "REDUCE bucket 0 of step 3: given up, because a second SIGINT came" in first.out
    assert "rank 1" in first.out
    assert "those after the last complete step, and can be saved" in first.out


def interrupts(number: int, count: int) -> threading.Thread:
    """A thread that sends signals to this process once it is started."""

    def send() -> None:
        for _ in range(count):
            time.sleep(0.2)
            os.kill(os.getpid(), number)

    return threading.Thread(target=send)


def test_who_waits_obeys_the_second_signal():
    never = threading.Event()
    thread = CommThread("hangs", deadline=60)
    work = thread.submit("REDUCE gradients", lambda: never.wait(20))
    start = time.monotonic()
    sender = interrupts(signal.SIGINT, 2)
    with pytest.raises(StepAbandoned, match="REDUCE gradients: given up") as caught, HELD:
        sender.start()
        thread.wait((work,))
    joined(sender)
    assert time.monotonic() - start < 15
    assert isinstance(caught.value, KeyboardInterrupt) and isinstance(
        caught.value, DataParallelError
    )
    assert caught.value.signal == signal.SIGINT
    never.set()


def test_the_first_signal_waits_for_the_step():
    thread = CommThread("works", deadline=60)
    done = []
    sender = interrupts(signal.SIGINT, 1)
    with pytest.raises(KeyboardInterrupt) as caught, HELD:
        sender.start()
        thread.wait((thread.submit("REDUCE", lambda: joined(sender)),))
        done.append(True)
    assert done and not isinstance(caught.value, StepAbandoned)
