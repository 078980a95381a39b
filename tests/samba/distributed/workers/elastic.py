"""A replica under an elastic launcher: trains two epochs from the last checkpoint on.

    python -m tests.samba.distributed.workers.elastic PEF FOLDER PACE [RANK:STEP]

It notes every step in FOLDER/steps-HOST-PID.txt: generation, world size, rank, epoch, position
before the step, loss, and the indices of its samples. A step of the first generation takes PACE
seconds at least. RANK kills itself before step STEP, once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samba
from samba import utils
from samba.distributed import job as jobs
from tests.samba.worlds import Scene, Tensors, World, named

SAMPLES, BATCH, EPOCHS, EVERY = 48, 4, 2, 2
"""A checkpoint every so many steps."""


class Net(nn.Module):
    """Two layers with dropout between; returns the loss and the logits."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(rate) if rate else nn.Identity()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.second(self.drop(self.first(x).tanh()))
        return F.cross_entropy(out, y), out


def data() -> Tensors:
    """All samples, and the number of each."""
    generator = torch.Generator().manual_seed(3)
    return {
        "x": torch.randn(SAMPLES, 5, generator=generator),
        "y": torch.randint(3, (SAMPLES,), generator=generator),
        "number": torch.arange(SAMPLES),
    }


def first_batch() -> Tensors:
    """Inputs to compile with."""
    return {name: tensor[:BATCH] for name, tensor in data().items() if name != "number"}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return samba.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8)


def plain() -> Net:
    return Net(0.0)


def dropping() -> Net:
    return Net(0.5)


def world(model: Callable[[], nn.Module]) -> World:
    """The program, with dropout or without."""
    return World(
        name=model.__name__,
        model=model,
        inputs=first_batch,
        optimizer=adamw,
        config={"data_parallel": True},
    )


def train(scene: Scene, folder: Path, pace: float, kill: tuple[int, int]) -> None:
    rank, size = utils.get_rank(), utils.get_world_size()
    dataset = TensorDataset(*data().values())
    sampler = utils.ElasticSampler(dataset, BATCH)
    scheduler = scheduler_of(scene.optimizer)
    checkpoint = utils.TrainingCheckpoint(
        folder / "last.pt", scene.model, scene.optimizer, sampler=sampler, scheduler=scheduler
    )
    kept = checkpoint.load()
    step, generation = (0, 1) if kept is None else (kept["step"], kept["generation"] + 1)
    notes = (folder / f"steps-{socket.gethostname()}-{os.getpid()}.txt").open("a")
    killed = folder / "killed"
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y, numbers in DataLoader(dataset, BATCH, sampler=sampler, drop_last=True):
            if (rank, step) == kill and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            place = [generation, size, rank, epoch, sampler.position]
            loss, _ = samba.session.run(
                named({"x": x, "y": y}), scene.model.output_tensors, data_parallel=True
            )
            scheduler.step()
            sampler.advance()
            step += 1
            notes.write(json.dumps([*place, loss.item(), numbers.tolist()]) + "\n")
            notes.flush()
            if step % EVERY == 0:
                checkpoint.save(step=step, generation=generation)
            time.sleep(pace if generation == 1 else 0)
    samba.session.to_cpu(scene.model, scene.optimizer)
    end = {path: p.detach().clone() for path, p in scene.model.named_parameters()}
    torch.save(end, folder / f"end{rank}.pt")


def main(pef: str, folder: Path, pace: float, kill: str = "-1:-1") -> None:
    jobs.start()
    scene = world(dropping if "dropping" in pef else plain).build()
    scene.pef = pef
    scene.trace()
    rank, step = kill.split(":")
    train(scene, folder, pace, (int(rank), int(step)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
