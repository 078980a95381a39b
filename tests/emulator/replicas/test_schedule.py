"""The scheduler of data parallel: dependencies always hold, and overlap is real."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from emulator.replicas.comm.worker import CommThread, Work
from emulator.replicas.schedule import (
    Chooser,
    Mode,
    Task,
    TaskGraph,
    dependencies,
    execute,
    prepare,
)


def task(
    name: str, reads: set[int], writes: set[int], *, net: bool = False, movable: bool = False
) -> Task:
    return Task(
        name=name, reads=frozenset(reads), writes=frozenset(writes), net=net, movable=movable
    )


def random_tasks(rng: random.Random) -> list[Task]:
    places = range(rng.randint(2, 12))
    tasks = []
    for i in range(rng.randint(1, 25)):
        kind = rng.choice(("fwd", "reduce", "opt"))
        tasks.append(
            task(
                f"{kind}{i}",
                {p for p in places if rng.random() < 0.25},
                {p for p in places if rng.random() < 0.2},
                net=kind == "reduce",
                movable=kind == "opt",
            )
        )
    return tasks


def training_tasks(
    layers: int, *, gradnorm: bool = False, tied: bool = False, last_first: bool = True
) -> list[Task]:
    """Forward, backward with a reduction after each layer, then an update of each layer."""
    weight = {i: i for i in range(layers)}
    if tied:
        weight[layers - 1] = weight[0]
    grad = {i: 100 + weight[i] for i in range(layers)}
    act = {i: 200 + i for i in range(layers + 1)}
    tasks = [task(f"fwd{i}", {weight[i], act[i]}, {act[i + 1]}) for i in range(layers)]
    last = {g: min(i for i in range(layers) if grad[i] == g) for g in grad.values()}
    for i in reversed(range(layers)):
        tasks.append(task(f"bckwd{i}", {weight[i], act[i], act[i + 1]}, {grad[i], act[i + 1]}))
        if last[grad[i]] == i:
            tasks.append(task(f"reduce{i}", {grad[i]}, {grad[i]}, net=True))
    if gradnorm:
        tasks.append(task("gradnorm", set(grad.values()), set(grad.values()), movable=True))
    for g, i in sorted(last.items(), reverse=last_first):
        tasks.append(task(f"opt{i}", {weight[i], g}, {weight[i]}, movable=True))
    return tasks


class Values:
    """Memory whose contents tell the whole history of what was read and written."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.lock = threading.Lock()

    def run(self, t: Task) -> None:
        with self.lock:
            read = tuple((p, self.places.get(p, 0)) for p in sorted(t.reads))
            for p in t.writes:
                self.places[p] = hash((t.name, p, read))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times at which tasks ran.

    Args:
        starts: Start of each task.
        ends: End of each task.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def total(self) -> float:
        """End of the last task."""
        return max(self.ends, default=0.0)


def simulate(schedule: TaskGraph, duration: Callable[[int], float]) -> Timeline:
    """Play a schedule on an ideal device and an ideal network.

    Args:
        schedule: What to play.
        duration: Time that a task takes.

    Returns:
        Start and end of every task.
    """
    tasks = schedule.tasks
    chooser = Chooser(tasks, schedule.needs, schedule.mode)
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    running: list[tuple[float, int]] = []
    busy = {True: False, False: False}
    now = 0.0

    def begin(index: int) -> None:
        starts[index], ends[index] = now, now + duration(index)
        busy[tasks[index].net] = True
        heapq.heappush(running, (ends[index], index))

    left = len(tasks)
    while left:
        if not busy[True] and (index := chooser.next_net()) is not None:
            begin(index)
        if not busy[False] and (index := chooser.next_device()) is not None:
            begin(index)
        now, index = heapq.heappop(running)
        busy[tasks[index].net] = False
        chooser.finish(index)
        left -= 1
    return Timeline(starts=tuple(starts), ends=tuple(ends))


def replay(tasks: list[Task], order: list[int]) -> dict[int, int]:
    memory = Values()
    for i in order:
        memory.run(tasks[i])
    return memory.places


def check(schedule: TaskGraph, line: Timeline) -> None:
    tasks = schedule.tasks
    for i, needs in enumerate(schedule.needs):
        assert all(line.ends[j] <= line.starts[i] for j in needs)
    for net in (True, False):
        on_it = [i for i, t in enumerate(tasks) if t.net is net]
        spans = sorted((line.starts[i], line.ends[i]) for i in on_it)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        moves = schedule.mode is Mode.OPTIMAL and not net
        fixed = [i for i in on_it if not (moves and tasks[i].movable)]
        starts = [line.starts[i] for i in fixed]
        assert starts == sorted(starts), "these keep their order"


def test_no_random_schedule_violates_a_dependency() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        tasks = random_tasks(rng)
        times = [rng.choice((0.0, 1.0, 2.0, 5.0)) + rng.random() for _ in tasks]
        right = replay(tasks, list(range(len(tasks))))
        totals = {}
        for mode in Mode:
            schedule = prepare(tasks, mode)
            line = simulate(schedule, times.__getitem__)
            check(schedule, line)
            order = sorted(range(len(tasks)), key=lambda i: (line.starts[i], line.ends[i]))
            assert replay(tasks, order) == right
            totals[mode] = line.total
        assert totals[Mode.NORMAL] == pytest.approx(sum(times))
        assert totals[Mode.INORDER] <= totals[Mode.NORMAL] + 1e-9


def test_the_check_bites() -> None:
    tasks = training_tasks(3)
    schedule = prepare(tasks, Mode.OPTIMAL)
    missing = TaskGraph(
        tasks=schedule.tasks, needs=tuple(frozenset() for _ in tasks), mode=Mode.OPTIMAL
    )
    line = simulate(missing, lambda i: 1.0)
    order = sorted(range(len(tasks)), key=lambda i: line.starts[i])
    with pytest.raises(AssertionError):
        check(schedule, line)
    assert replay(tasks, order) != replay(tasks, list(range(len(tasks))))


class Running:
    """Hands with the communication thread of real runs, which note when tasks run."""

    def __init__(self, tasks: list[Task], thread: CommThread) -> None:
        self.tasks, self.thread, self.memory = tasks, thread, Values()
        self.clock = itertools.count()  # one step of it is atomic
        self.spans = [(0, 0)] * len(tasks)

    def run(self, index: int) -> None:
        begin = next(self.clock)
        self.memory.run(self.tasks[index])
        self.spans[index] = (begin, next(self.clock))

    def start(self, index: int) -> Work:
        return self.thread.submit(self.tasks[index].name, lambda: self.run(index))

    def wait(self, tickets: Sequence[Work]) -> None:
        self.thread.wait(tickets)


def test_no_random_schedule_violates_a_dependency_on_the_communication_thread() -> None:
    rng = random.Random(2)
    thread = CommThread("test", deadline=60)
    for number in range(1000):
        tasks = random_tasks(rng)
        mode = [*Mode][number % 3]
        schedule, hands = prepare(tasks, mode), Running(tasks, thread)
        execute(schedule, hands)
        starts, ends = zip(*hands.spans, strict=True)
        check(schedule, Timeline(starts=starts, ends=ends))
        assert hands.memory.places == replay(tasks, list(range(len(tasks))))
    assert thread.close(5)


def test_dependencies_are_the_last_writer_and_the_readers_since() -> None:
    tasks = [
        task("w", set(), {1}),
        task("r1", {1}, set()),
        task("r2", {1}, {2}),
        task("w2", set(), {1}),
        task("r3", {1, 2}, set()),
        task("add", {2}, {2}),
    ]
    assert [sorted(d) for d in dependencies(tasks)] == [[], [0], [0], [0, 1, 2], [2, 3], [2, 4]]


def duration(tasks: list[Task]) -> Callable[[int], float]:
    seconds = {"fwd": 1.0, "bckwd": 2.0, "reduce": 3.0, "opt": 2.0, "gradnorm": 0.5}
    return lambda i: seconds[tasks[i].name.rstrip("0123456789")]


@pytest.mark.parametrize("layers", [1, 2, 6, 12])
@pytest.mark.parametrize("gradnorm", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_overlap_pays_on_training(layers: int, gradnorm: bool, tied: bool) -> None:
    tasks = training_tasks(layers, gradnorm=gradnorm, tied=tied)
    line = {m: simulate(prepare(tasks, m), duration(tasks)).total for m in Mode}
    if layers > 1 and not (tied and layers == 2):
        assert line[Mode.INORDER] < line[Mode.NORMAL]
    assert line[Mode.OPTIMAL] <= line[Mode.INORDER]


def test_twelve_layers() -> None:
    tasks = training_tasks(12)
    line = {m.value: simulate(prepare(tasks, m), duration(tasks)).total for m in Mode}
    assert line == {"normal": 96.0, "inorder": 60.0, "optimal": 60.0}
    unlucky = training_tasks(12, last_first=False)
    line = {m.value: simulate(prepare(unlucky, m), duration(unlucky)).total for m in Mode}
    assert line == {"normal": 96.0, "inorder": 74.0, "optimal": 60.0}


def test_failures_reach_the_caller() -> None:
    tasks = training_tasks(2)

    class Failing(Running):
        def wait(self, tickets: Sequence[Work]) -> None:
            raise RuntimeError("link down")

    with pytest.raises(RuntimeError, match="link down"):
        execute(prepare(tasks, Mode.INORDER), Failing(tasks, CommThread("test", deadline=60)))
