"""A replica that times steps in all modes, in turns, over whatever network there is.

    python -m tests.samba.distributed.workers.timed FOLDER WIDTH compile
    python -m tests.samba.distributed.workers.timed FOLDER WIDTH run ROUNDS STEPS LATENCY RATE

It prints the seconds of a step, the median of rounds, by mode. Reductions are prolonged by a
latency in seconds and a rate in bytes per second, where they are not 0.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.replicas.comm.link import SlowLink
from samba.distributed import job as jobs
from tests.samba.distributed.worlds import MODES, compile_to
from tests.samba.worlds import Scene, Tensors, World, named, sharing_executables

LAYERS, SAMPLES = 12, 64
BUCKET_BYTES = 256 << 10


class Tower(nn.Module):
    """Equal linear layers; returns the loss and the last one's output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x).tanh()
        return F.mse_loss(x, y), x


def inputs(width: int) -> Tensors:
    """Samples of one replica."""
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(SAMPLES, width, generator=generator) for name in ("x", "y")}


def tower(width: int) -> World:
    """The program."""
    return World(
        name=f"tower_{width}",
        model=lambda: Tower(width),
        inputs=lambda: inputs(width),
        optimizer=lambda m: samba.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
        config={"data_parallel": True, "optim_level": "o0"},
    )


def seconds(job: jobs.Job, scene: Scene, width: int, mode: str, steps: int) -> float:
    """Seconds of a step, after all replicas have come."""
    job.together("measuring", lambda control: control.barrier())
    start = time.perf_counter()
    for _ in range(steps):
        how = {"reduce_on_rdu": True, "data_parallel_mode": mode}
        samba.session.run(named(inputs(width)), (), data_parallel=True, **how)
    return (time.perf_counter() - start) / steps


def main(folder: Path, width: int, *, rounds: int, steps: int, latency: float, rate: float) -> None:
    job = jobs.start()
    assert job is not None
    if latency or rate:
        job.data = SlowLink(job.data, latency=latency, bytes_per_second=rate or None)
    scene = tower(width).build()
    scene.pef = str(folder / scene.world.name / f"{scene.world.name}.pef")
    scene.trace()
    found = samba.session._slot.loaded
    assert found is not None
    assert found.replicas is not None
    found.replicas.mode = None  # any may come
    for mode in MODES:
        seconds(job, scene, width, mode, 2)
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    orders = itertools.cycle(itertools.permutations(MODES))
    for order in itertools.islice(orders, rounds):
        for mode in order:
            times[mode].append(seconds(job, scene, width, mode, steps))
    print(*(f"{mode} {statistics.median(times[mode]):.5f}" for mode in MODES), flush=True)


if __name__ == "__main__":
    folder, width = Path(sys.argv[1]), int(sys.argv[2])
    with sharing_executables():
        if sys.argv[3] == "compile":
            compile_to(folder, tower(width), BUCKET_BYTES)
        else:
            rounds, steps = map(int, sys.argv[4:6])
            latency, rate = map(float, sys.argv[6:8])
            main(folder, width, rounds=rounds, steps=steps, latency=latency, rate=rate)
