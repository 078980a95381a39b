"""Programs with several buckets, for data parallel tests, and what replicas of them do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.comm.protocol import Communicator
from pef_schema.program import Role
from samba.distributed.bagua import QAdamOptimizer
from samba.distributed.job import Job
from samba.distributed.replicas import Replicas
from samba.session.loaded import Loaded
from samba.session.request import RunRequest
from tests.samba.worlds import Scene, Tensors, World, named

BATCH = 8
"""Samples of one replica."""
MODES = ("normal", "inorder", "optimal")
"""Of ``data_parallel_mode``."""


class Deep(nn.Module):
    """Three linear layers and a buffer; returns the loss and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)])
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.full((6,), 0.5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * self.scale
        for layer in self.layers[:-1]:
            x = layer(x).tanh()
        out = self.layers[-1](x)
        return F.cross_entropy(out, y), out


def batch(samples: int, step: int = 0) -> Tensors:
    """Samples of one step, for all replicas together."""
    generator = torch.Generator().manual_seed(100 + step)
    return {
        "x": torch.randn(samples, 6, generator=generator),
        "y": torch.randint(3, (samples,), generator=generator),
    }


def part_of(tensors: Tensors, rank: int, size: int) -> Tensors:
    """The samples of one replica: every ``size``-th, as a ``DistributedSampler`` deals them."""
    return {name: t[rank::size].contiguous() for name, t in tensors.items()}


def share_of(job: Job, step: int = 0) -> tuple[samba.SambaTensor, ...]:
    """The inputs of one replica in a step."""
    return named(part_of(batch(BATCH * job.size, step), job.rank, job.size))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: samba.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
    "qadam": lambda m: QAdamOptimizer(m.parameters(), lr=0.01, warmup_steps=3, weight_decay=0.01),
    "nadam": lambda m: samba.optim.NAdam(m.parameters(), lr=0.01, eps=1e-3, weight_decay=0.1),
}


def world(optimizer: str, samples: int = BATCH, *, data_parallel: bool = True) -> World:
    """A program with a section per operation and several buckets."""
    return World(
        name=f"{optimizer}_{samples}_{'dp' if data_parallel else 'alone'}",
        model=Deep,
        inputs=functools.partial(batch, samples),
        optimizer=OPTIMIZERS[optimizer],
        config={"data_parallel": data_parallel, "optim_level": "o0"},
    )


def state_of(scene: Scene) -> Tensors:
    """Weights, buffers and optimizer state on the device."""
    samba.session.sync_buffers_to_cpu(scene.model)
    state = scene.weights() | {n: b.clone() for n, b in scene.model.named_buffers()}
    return state | {n: s.sn_data for n, s in samba.session.optim_dict.items()}


def compile_to(folder: Path, of: World, bucket_bytes: int = 500) -> str:
    """Compile a world with small buckets; returns the path of the PEF."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAGUA_DEFAULT_BUCKET_SIZE", str(bucket_bytes))
        return of.build().compile(folder)


def compiled(folder: Path, optimizer: str = "sgd", *, data_parallel: bool = True) -> Scene:
    """A world whose PEF is in a folder."""
    made = world(optimizer, data_parallel=data_parallel).build()
    made.pef = str(folder / made.world.name / f"{made.world.name}.pef")
    return made


def loaded(folder: Path, optimizer: str = "sgd", **keywords: Any) -> Loaded:
    """A program loaded by itself."""
    return loaded_of(compiled(folder, optimizer, **keywords))


def loaded_of(scene: Scene) -> Loaded:
    """The program of a scene, loaded by itself."""
    scene.trace()
    found = samba.session._slot.loaded
    assert found is not None
    return found


def newly_loaded(of: World, folder: Path) -> Loaded:
    """The program of a world, which is compiled before."""
    scene = of.build()
    scene.compile(folder)
    return loaded_of(scene)


# -- replicas in threads ---------------------------------------------------------------


def job_of(communicator: Communicator) -> Job:
    return Job(communicator, None, communicator)


def together(
    programs: list[Loaded], work: Callable[[Loaded, int], Any], mode: str | None = "normal"
) -> list[Any]:
    """Do something with several programs as the replicas of a job; what they return or raise."""

    def one(communicator: Communicator) -> Any:
        program = programs[communicator.rank]
        program.join(Replicas(program.device, mode, job_of(communicator)))
        return work(program, communicator.rank)

    return run_ranks(len(programs), one, deadline=20)


def run_step(
    program: Loaded,
    tensors: Tensors,
    *,
    types: tuple[str, ...] = (),
    data_parallel: bool = True,
    reduce_on_rdu: bool = True,
    mode: str | None = None,
    hyperparameters: dict[str, float] | None = None,
) -> None:
    """Run a program as ``session.run`` does."""
    mode = mode or program.replicas.mode or "normal"
    wish = program.replicas.wish(data_parallel, reduce_on_rdu, mode)
    sections = (types, (), None, None)
    assert program.only is not None
    program.only.run(
        RunRequest(named(tensors), (), hyperparameters or {}, sections, None, True, wish)
    )


def trained(
    program: Loaded, roles: tuple[Role, ...] = (Role.WEIGHT, Role.OPTIMIZER_STATE)
) -> dict[str, np.ndarray]:
    """Weights and optimizer states on the device of a program."""
    return {
        region.name: program.device.read(number)
        for number, region in enumerate(program.program.regions)
        if region.role in roles and program.device.pool.buffers[number] is not None
    }


def same(first: dict[str, np.ndarray], *others: dict[str, np.ndarray]) -> bool:
    """Whether others have the same arrays under the same names."""
    return all(
        first.keys() == other.keys() and all(np.array_equal(first[n], other[n]) for n in first)
        for other in others
    )
