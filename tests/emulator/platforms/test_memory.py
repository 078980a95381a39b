"""Memory that is not the host's: nothing takes it for the host's, and its own size is the limit."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from emulator.device import Device
from emulator.errors import OutOfMemory
from emulator.memory import host_view
from emulator.memory.budget import LIMIT_VARIABLE, check_size, memory_limit
from emulator.memory.host_view import NotHostMemory, is_host_memory, writable_view
from emulator.memory.pool import Placement
from emulator.mesh.chips import Chips
from emulator.plans import plan as plans
from emulator.plans.plan import compile_plan
from emulator.plans.steps import all_steps
from emulator.plans.xla_options import xla_options
from emulator.replicas.comm import Communicator, ReduceOp
from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.parallel import reducer
from pef_schema.program import Program
from tests.pef_schema.samples import inference
from tests.samba.compiler.test_buckets import Net, compiled, sgd


@pytest.fixture(scope="module")
def program() -> Program:
    """One whose gradients lie in buckets."""
    model = Net()
    return compiled(model, sgd(model), bucket_bytes=1500)


def gpu(**stats: int) -> Any:
    """What the code asks of a ``jax.Device``, as a GPU answers."""
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


def placed(device: Device, where: Any) -> Placement:
    """A program's memory on another jax device."""
    return Placement(buffer_map=device.buffer_map, chips=Chips(devices=(where,)))


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays count as lying in a memory of the device's own, as on a GPU."""
    monkeypatch.setattr(host_view, "HOST_PLATFORMS", frozenset())


@pytest.mark.usefixtures("foreign")
def test_the_host_writes_no_foreign_memory() -> None:
    array = jax.device_put(np.zeros(3, np.float32))
    assert not is_host_memory(array)
    with pytest.raises(NotHostMemory, match="shape \\[3\\] lies in the memory of a cpu") as caught:
        writable_view(array)
    assert (caught.value.platform, caught.value.shape) == ("cpu", (3,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_reductions_through_the_host(foreign: None, dtype: Any) -> None:
    """Engines that reduce on the host take a copy there and back; 64-bit types stay."""

    def work(comm: Communicator) -> np.ndarray:
        with jax.enable_x64(True):
            mine = jax.device_put(np.arange(5).astype(dtype) + comm.rank)
        found = comm.all_reduce_device(mine, ReduceOp.SUM)
        assert found.dtype == dtype and found.devices() == mine.devices()
        assert not mine.is_deleted() and np.asarray(mine)[0] == comm.rank
        return np.asarray(found)

    for found in run_ranks(2, work):
        np.testing.assert_array_equal(found, 2 * np.arange(5).astype(dtype) + 1)


def test_reductions_in_place_where_memory_is_the_hosts() -> None:
    def work(comm: Communicator) -> bool:
        mine = jax.device_put(np.zeros(64, np.float32) + comm.rank)
        before = mine.unsafe_buffer_pointer()
        return comm.all_reduce_device(mine, ReduceOp.MAX).unsafe_buffer_pointer() == before

    assert run_ranks(2, work) == [True, True]


def _bucketed(program: Program) -> tuple[Device, int]:
    """A device with a bucket of gradients, and one of them."""
    device = Device(program)
    device.use_buckets()
    return device, next(iter(device.buffer_map.place))


@pytest.mark.parametrize("own", [False, True], ids=["host", "own"])
def test_a_gradient_inside_a_bucket_is_overwritten(
    monkeypatch: pytest.MonkeyPatch, program: Program, own: bool
) -> None:
    if own:
        monkeypatch.setattr(host_view, "HOST_PLATFORMS", frozenset())
    device, region = _bucketed(program)
    bucket, _ = device.buffer_map.place[region]
    old = {r: np.full_like(device.read(r), 2.0) for r in bucket.regions}
    for r, values in old.items():
        device.write(r, values)
    held: Any = device.pool.buffers[bucket.home]
    device.overwrite(region, np.full_like(old[region], 7.0))
    for r, values in old.items():
        np.testing.assert_array_equal(device.read(r), 7.0 if r == region else values)
    assert (device.pool.buffers[bucket.home] is held) is not own


@pytest.mark.usefixtures("foreign")
def test_a_bucket_is_averaged_wherever_it_lies(program: Program) -> None:
    def work(comm: Communicator) -> list[np.ndarray]:
        device, region = _bucketed(program)
        home = device.buffer_map.place[region][0].home
        device.write(region, np.full_like(device.read(region), 2.0 * comm.rank))
        held: Any = device.pool.buffers[home]
        return [
            np.asarray(reducer(device, comm, on_device=wish)(held.copy())) for wish in (False, True)
        ]

    for ways in run_ranks(2, work):
        assert ways[0].max() == 1.0
        np.testing.assert_array_equal(ways[0], ways[1])


def test_the_limit_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    assert memory_limit(gpu(bytes_limit=1234)) == 1234
    assert memory_limit(gpu()) == sys.maxsize  # jax's other allocators do not say
    assert memory_limit(gpu(bytes_limit=0)) == sys.maxsize  # XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async
    assert memory_limit(SimpleNamespace(platform="gpu", memory_stats=lambda: None)) == sys.maxsize
    with pytest.raises(OutOfMemory) as caught:
        check_size(inference(), Chips(devices=(gpu(bytes_limit=24),)))
    assert (caught.value.need, caught.value.have) == (48, 24)
    monkeypatch.setenv(LIMIT_VARIABLE, "100")
    assert memory_limit(gpu(bytes_limit=1234)) == 100


@pytest.mark.parametrize("platform", ["gpu", "cuda", "rocm", "tpu", "metal"])
def test_options_are_the_cpus_alone(platform: str) -> None:
    """Another platform gets one option alone: XLA keeps the roundings that a script asks for."""
    assert xla_options(SimpleNamespace(platform=platform)) == {"xla_allow_excess_precision": False}
    assert not any("excess" in name for name in xla_options(SimpleNamespace(platform="cpu")))


def test_a_plan_for_a_gpu_is_compiled_without_the_cpus_options(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """What reaches XLA is looked at; a CPU has to stand in for the GPU that compiles it."""
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    device = Device(program)
    given: list[dict[str, Any]] = []
    real, traced = jax.stages.Lowered.compile, plans._traced

    def compile_(self: Any, compiler_options: Any = None, **keywords: Any) -> Any:
        given.append(dict(compiler_options or {}))
        return real(self, compiler_options, **keywords)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_)
    monkeypatch.setattr(plans, "_traced", lambda f, c, _: traced(f, c, device.placement))
    arguments = (program, device.buffer_map, all_steps(program, 0), device.variant)
    compile_plan(*arguments, placed(device, gpu(bytes_limit=2**30)))
    with pytest.raises(OutOfMemory):
        compile_plan(*arguments, placed(device, gpu(bytes_limit=2**4)))
    compile_plan(*arguments, device.placement)
    assert given[:2] == [xla_options(gpu())] * 2
    assert given[2] == xla_options(jax.devices("cpu")[0]) != {}
