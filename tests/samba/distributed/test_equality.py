"""N replicas train as one process with the whole batch does, whatever the mode and the engine."""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import samba
from tests.processes import host_devices
from tests.samba.distributed.processes import all_well, run_replicas, worker
from tests.samba.distributed.worlds import (
    BATCH,
    MODES,
    OPTIMIZERS,
    batch,
    compile_to,
    state_of,
    world,
)
from tests.samba.session.loading import loaded
from tests.samba.worlds import Tensors, named

STEPS = 10


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the PEF of each optimizer."""
    folder = tmp_path_factory.mktemp("programs")
    for optimizer in OPTIMIZERS:
        compile_to(folder, world(optimizer))
    return folder


@functools.cache
def alone(optimizer: str, size: int) -> Tensors:
    """Where one process with the whole batch ends."""
    with tempfile.TemporaryDirectory() as folder:
        scene = loaded(world(optimizer, BATCH * size, data_parallel=False), Path(folder))
        for step in range(STEPS):
            samba.session.run(named(batch(BATCH * size, step)), ())
        return {name: value.clone() for name, value in state_of(scene).items()}


ALL = list(itertools.product(OPTIMIZERS, MODES, "01"))


def check(
    folder: Path, engine: str, size: int, combinations: list[tuple[str, str, str]], **env: str
) -> None:
    """Train in a folder with PEFs, and compare."""
    all_well(
        run_replicas(
            size,
            worker("train"),
            str(folder),
            str(STEPS),
            *map(":".join, combinations),
            seconds=400,
            env={"SN_DP_ENGINE": engine, "CCL_TIMEOUT": "60", **env},
        )
    )
    for optimizer in OPTIMIZERS:
        expected = alone(optimizer, size)
        first: Tensors | None = None
        chosen = [c for c in combinations if c[0] == optimizer]
        for combination, rank in itertools.product(chosen, range(size)):
            name = f"{'-'.join(combination)}-{engine}-{size}-{rank}"
            found = torch.load(folder / f"{name}.pt", weights_only=True)
            first = found if first is None else first
            assert found.keys() == expected.keys()
            for path, values in found.items():
                assert torch.equal(values, first[path]), f"{name}: {path}"
        assert first is not None
        for path, values in first.items():
            off = (values - expected[path]).norm() / expected[path].norm()
            assert off < 1e-6, f"{optimizer}: {path} is off by {off:.2g}"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_each_replica_on_a_device_of_its_own(programs, tmp_path, engine):
    """Two devices of XLA:CPU in each process stand for a host with two GPUs."""
    some = [ALL[i] for i in (1, 9, 15, 21)]
    folder = shutil.copytree(programs, tmp_path / "run")
    check(folder, engine, 2, some, XLA_FLAGS=host_devices(2))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_combination(programs, tmp_path, engine, size):
    check(shutil.copytree(programs, tmp_path / "run"), engine, size, ALL)
