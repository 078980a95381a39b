"""A replica that trains with checkpoints, until one of them does something bad.

    python -m tests.samba.distributed.workers.faulty PEF FOLDER [FAULT:RANK:PLACE] [use_abexit]

FAULT is kill, stop, raise or exit; PLACE is forward, reduce or checkpoint.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import samba
from emulator.device import Device
from samba.distributed import job as jobs
from samba.distributed.job import Job
from tests.samba.distributed.worlds import share_of, world

STEPS = 6
AT = 4
"""The step in which it happens."""


def misbehave(fault: str) -> None:
    """Do it."""
    print("now", time.time(), flush=True)
    match fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise ValueError("something the script did wrong")
        case "exit":
            sys.exit(3)


def arm(job: Job, fault: str, place: str) -> Callable[[int, str], None]:
    """Prepare a fault; returns what the training loop calls with its step and place."""
    step_now = 0

    def after(original: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kw: object) -> object:
            if step_now == AT:
                misbehave(fault)
            return original(*args, **kw)

        return wrapped

    if place == "forward":
        Device.run = after(Device.run)
    if place == "reduce":
        job.data.all_reduce_device = after(job.data.all_reduce_device)

    def at(step: int, where: str) -> None:
        nonlocal step_now
        step_now = step
        if step == AT and where == place:
            misbehave(fault)

    return at


def main(pef: str, folder: Path, fault: str) -> None:
    job = jobs.start()
    assert job is not None
    kind, rank, place = fault.split(":") if fault else ("", "-1", "")
    at = arm(job, kind, place) if job.rank == int(rank) else lambda step, where: None
    scene = world("sgd").build()
    scene.pef = pef
    scene.trace(data_parallel_mode="inorder")
    for step in range(1, STEPS + 1):
        at(step, "step")
        how = {"reduce_on_rdu": True, "data_parallel_mode": "inorder"}
        scene.run(share_of(job, step), data_parallel=True, **how)
        if step % 2 == 0:
            if job.rank == 0:
                samba.session.to_cpu(scene.model)
                torch.save(scene.model.state_dict(), folder / f"{step}.pt")
            at(step, "checkpoint")
            dist.barrier()
    print("trained", flush=True)


if __name__ == "__main__":
    atexit.register(print, "atexit ran", flush=True)
    samba.session.atexit_register(print, "atexit_register ran", flush=True)
    rest = sys.argv[3:]
    arguments = (sys.argv[1], Path(sys.argv[2]), rest[0] if rest else "")
    if rest[1:] == ["use_abexit"]:
        samba.session.use_abexit(main, *arguments)
    else:
        main(*arguments)
