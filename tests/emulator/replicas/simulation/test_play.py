"""Schedules on two resources that may share a processor."""

from __future__ import annotations

import random

import pytest

from emulator.replicas.schedule import Mode, Task, prepare, simulate
from emulator.replicas.simulation.play import play
from tests.emulator.replicas.test_schedule import random_tasks, training_tasks


def drawn(seed: int) -> tuple[list[Task], list[float]]:
    rng = random.Random(seed)
    tasks = random_tasks(rng)
    return tasks, [rng.uniform(0.1, 2.0) for _ in tasks]


@pytest.mark.parametrize("mode", Mode)
def test_without_a_share_it_is_the_ideal_simulation(mode):
    for seed in range(100):
        tasks, times = drawn(seed)
        graph = prepare(tasks, mode)
        ideal, found = simulate(graph, times.__getitem__), play(graph, times.__getitem__)
        assert found.starts == pytest.approx(ideal.starts)
        assert found.ends == pytest.approx(ideal.ends)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_bounds(mode, share):
    for seed in range(100):
        tasks, times = drawn(seed)
        total = play(prepare(tasks, mode), times.__getitem__, processor_share=share).total
        compute = sum(t for t, task in zip(times, tasks, strict=True) if not task.net)
        communication = sum(t for t, task in zip(times, tasks, strict=True) if task.net)
        both = compute + communication
        # Of the time in which both are busy no more is won than the processor has left.
        least = max(compute, communication, both * (1 + share) / 2)
        assert least * (1 - 1e-9) <= total <= both * (1 + 1e-9)


def test_with_the_whole_processor_nothing_is_won():
    for seed in range(100):
        tasks, times = drawn(seed)
        total = play(prepare(tasks, Mode.INORDER), times.__getitem__, processor_share=1.0).total
        assert total == pytest.approx(sum(times))


def test_half_of_the_processor_by_hand():
    # Three seconds of reduction, half of each the processor's, beside two of a device task: both
    # go at 2/3 until the device is done at 3 s; a second of the reduction is left, alone.
    none: frozenset[int] = frozenset()
    tasks = [Task(name=n, reads=none, writes=none, net=n == "r") for n in "rd"]
    line = play(prepare(tasks, Mode.INORDER), [3.0, 2.0].__getitem__, processor_share=0.5)
    assert line.starts == (0.0, 0.0)
    assert line.ends == pytest.approx((4.0, 3.0))


def test_normal_mode_is_a_sum_whatever_the_share():
    tasks = training_tasks(5)
    graph = prepare(tasks, Mode.NORMAL)
    for share in (0.0, 1.0):
        assert play(graph, lambda _: 0.25, processor_share=share).total == 0.25 * len(tasks)
