"""Steps of compiled programs: the same tasks as a real run's, and times by hand."""

from __future__ import annotations

import pytest

from emulator.device import Device
from emulator.plans.step_choice import all_steps
from emulator.replicas.parallel import prepare_parallel
from emulator.replicas.schedule import Mode
from emulator.replicas.simulation.links import AllReduce, Cluster, Link
from emulator.replicas.simulation.step import MissingTimes, NothingToReduce, planned_step
from tests.samba.compiler.test_buckets import Net, adamw, compiled, sgd

LINK = Link(latency=20e-6, bandwidth=1e9)
ALONE = Cluster(between=LINK, inside=LINK)


@pytest.fixture(scope="module")
def program():
    """Four buckets, each behind the backward section of its layer."""
    model = Net(3, classes=16)
    return compiled(model, adamw(model), bucket_bytes=16 * 17 * 4)


def test_tasks_are_those_of_a_real_run(program):
    device = Device(program)
    device.use_buckets()
    for mode in Mode:
        real = prepare_parallel(device, all_steps(program), mode)
        assert planned_step(program).tasks == real.schedule.tasks
    sizes = [b.size * b.dtype.itemsize for b in device.buffer_map.buckets]
    assert [n for n in planned_step(program).nbytes if n] == sizes and len(sizes) == 4


@pytest.mark.parametrize("n", [2, 8, 4096])
def test_normal_mode_is_a_sum_by_hand(program, n):
    step = planned_step(program)
    reduce = sum(2 * (n - 1) * (20e-6 + nbytes / (n * 1e9)) for nbytes in step.nbytes if nbytes)
    devices = [t for t in step.tasks if not t.net]
    found = step.on_cluster(Mode.NORMAL, lambda _: 1e-3, ALONE, AllReduce.RING, replicas=n)
    assert found.compute == pytest.approx(1e-3 * len(devices))
    assert found.communication == pytest.approx(reduce)
    assert found.seconds == pytest.approx(1e-3 * len(devices) + reduce)
    assert found.exposed == pytest.approx(reduce)
    assert found.efficiency == pytest.approx(found.compute / found.seconds)


def test_inorder_hides_reductions_that_are_shorter_than_sections(program):
    # Each goes on beside the next backward section, the last beside the first updates.
    step = planned_step(program)
    found = step.on_cluster(Mode.INORDER, lambda _: 1e-3, ALONE, AllReduce.RING, replicas=8)
    assert found.communication > 0 and found.exposed == pytest.approx(0, abs=1e-12)


def test_a_slow_network_is_busy_from_the_first_bucket_to_the_last(program):
    # What is in front of it, to the first bucket, is one task; behind it is the last update.
    step, slow = planned_step(program), Link(latency=1.0, bandwidth=1e9)
    cluster = Cluster(between=slow, inside=slow)
    found = step.on_cluster(Mode.INORDER, lambda _: 1e-3, cluster, AllReduce.RING, replicas=2)
    reduce = sum(2 * (1.0 + nbytes / 2e9) for nbytes in step.nbytes if nbytes)
    assert found.communication == pytest.approx(reduce)
    assert found.seconds == pytest.approx(1e-3 + reduce + 1e-3)


@pytest.mark.parametrize("algorithm", AllReduce)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 100, 4096])
def test_bounds_and_order_of_modes(program, algorithm, n):
    step = planned_step(program)
    cluster = Cluster(between=LINK, inside=Link(latency=1e-6, bandwidth=1e10), per_host=4)
    of = {
        mode: step.on_cluster(mode, lambda _: 1e-3, cluster, algorithm, replicas=n) for mode in Mode
    }
    for time in of.values():
        least = max(time.compute, time.communication)
        assert least <= time.seconds * (1 + 1e-9)
        assert time.seconds <= (time.compute + time.communication) * (1 + 1e-9)
        assert 0 < time.efficiency <= 1 + 1e-9
    assert of[Mode.INORDER].seconds <= of[Mode.NORMAL].seconds * (1 + 1e-9)
    assert of[Mode.OPTIMAL].seconds <= of[Mode.INORDER].seconds * (1 + 1e-9)
    if n == 1:
        assert all(t.communication == 0 and t.efficiency == 1 for t in of.values())


@pytest.mark.parametrize("algorithm", AllReduce)
@pytest.mark.parametrize("mode", Mode)
def test_more_bandwidth_is_never_slower(program, algorithm, mode):
    step = planned_step(program)
    seconds = [
        step.on_cluster(
            mode,
            lambda _: 1e-4,
            Cluster(between=link, inside=link),
            algorithm,
            replicas=64,
        ).seconds
        for link in (Link(latency=1e-5, bandwidth=10.0**k) for k in range(5, 12))
    ]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1]


def test_times_of_sections(program):
    step = planned_step(program)
    times = {s.name: 0.5 for s in program.sections if "reduce" not in s.name}
    found = step.device_seconds(program, times)
    assert [t > 0 for t in found] == [not task.net for task in step.tasks]
    assert sum(found) == pytest.approx(0.5 * len(times))
    name = next(s.name for s in program.sections)
    with pytest.raises(MissingTimes, match=f"found none of {name}") as caught:
        step.device_seconds(program, {n: t for n, t in times.items() if n != name})
    assert caught.value.missing == (name,)


def test_a_program_that_was_not_compiled_for_replicas():
    model = Net(3)
    with pytest.raises(NothingToReduce, match="--data-parallel") as caught:
        planned_step(compiled(model, sgd(model), data_parallel=False))
    assert caught.value.program == "net"
