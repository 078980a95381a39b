"""Run tasks on two resources, the device and the network, in an order their data allows.

A data-parallel run is a list of tasks in the order of the PEF: device sections and
reductions of gradient buckets. What may overlap, and what may overtake, is a question of
the mode; what must come before what is a question of the regions that tasks read and write.
One scheduler answers both.
"""

from __future__ import annotations

import contextlib
import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Mode(enum.Enum):
    """How reductions and device sections may overlap (``data_parallel_mode``)."""

    NORMAL = "normal"
    """One task at a time, in the order given."""
    INORDER = "inorder"
    """Reductions run beside the device; both keep their order."""
    OPTIMAL = "optimal"
    """As INORDER, and movable tasks run when the device would have to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something to run.

    Args:
        name: For people.
        reads: Places it reads, any hashable numbers.
        writes: Places it writes.
        net: Whether it runs on the network instead of the device.
        movable: Whether OPTIMAL may take it out of its order. Tasks on the network never move:
            all replicas must reduce the same buckets in the same order.
    """

    name: str
    reads: frozenset[int]
    writes: frozenset[int]
    net: bool = False
    movable: bool = False


def dependencies(tasks: Sequence[Task]) -> tuple[frozenset[int], ...]:
    """Find the tasks that must be finished before each task may start.

    A task waits for the last writer of all it reads or writes, and for every reader of what it
    writes since then.

    Args:
        tasks: Tasks in an order that is right when they run one after the other.

    Returns:
        Indices of earlier tasks, for each task.

    Example:
        >>> a = Task(name="a", reads=frozenset(), writes=frozenset({1}))
        >>> b = Task(name="b", reads=frozenset({1}), writes=frozenset())
        >>> [sorted(d) for d in dependencies([a, b, b, a])]
        [[], [0], [0], [0, 1, 2]]
    """
    result: list[frozenset[int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for i, task in enumerate(tasks):
        needs = {writer[r] for r in task.reads | task.writes if r in writer}
        for r in task.writes:
            needs |= readers.get(r, set())
        result.append(frozenset(needs))
        for r in task.reads:
            readers.setdefault(r, set()).add(i)
        for r in task.writes:
            writer[r] = i
            readers[r] = set()
    return tuple(result)


class Chooser:
    """Choice of the task that may start next on a free resource.

    The order of the network's tasks is that of the list in every mode, so replicas that make
    progress at different speeds still meet in the same collectives.

    Args:
        tasks: The tasks.
        needs: Their dependencies, see :func:`dependencies`.
        mode: What may overlap and overtake.
    """

    def __init__(self, tasks: Sequence[Task], needs: Sequence[frozenset[int]], mode: Mode) -> None:
        self._needs = needs
        self._finished: set[int] = set()
        moves = mode is Mode.OPTIMAL
        self._net = deque(i for i, task in enumerate(tasks) if task.net)
        on_device = [i for i, task in enumerate(tasks) if not task.net]
        self._fixed = deque(i for i in on_device if not (moves and tasks[i].movable))
        self._movable = [i for i in on_device if moves and tasks[i].movable]

    def finish(self, index: int) -> None:
        """Note that a task is done."""
        self._finished.add(index)

    def next_net(self) -> int | None:
        """The next task of the network, None if it is not ready or none is left."""
        if self._net and self._needs[self._net[0]] <= self._finished:
            return self._net.popleft()
        return None

    def next_device(self) -> int | None:
        """The next task of the device, None if none is ready or none is left."""
        if self._fixed and self._needs[self._fixed[0]] <= self._finished:
            return self._fixed.popleft()
        for position, index in enumerate(self._movable):
            if self._needs[index] <= self._finished:
                return self._movable.pop(position)
        return None


class Ticket(Protocol):
    """A task that was handed to the network."""

    def done(self) -> bool:
        """Whether it is finished, well or not."""
        ...


T = TypeVar("T", bound=Ticket)


class Hands(Protocol[T]):
    """The workers of a schedule: the device and the network."""

    def run(self, index: int) -> None:
        """Do a device task, or start it so that later ones wait for it by themselves."""
        ...

    def start(self, index: int) -> T:
        """Hand a task to the network and return at once."""
        ...

    def wait(self, tickets: Sequence[T]) -> None:
        """Return when the first of the tickets is done; raise if it failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """Tasks with their dependencies, for many runs.

    Args:
        tasks: The tasks in order.
        needs: Those that must be finished before each may start; in NORMAL mode the one before it.
        mode: What may overlap and overtake.
    """

    tasks: tuple[Task, ...]
    needs: tuple[frozenset[int], ...]
    mode: Mode


def prepare(tasks: Sequence[Task], mode: Mode) -> TaskGraph:
    """Find the dependencies of tasks.

    Args:
        tasks: Tasks in an order that is right when they run one after the other.
        mode: What may overlap and overtake.

    Returns:
        What :func:`execute` takes.
    """
    if mode is Mode.NORMAL:
        needs = tuple(frozenset(range(max(0, i - 1), i)) for i in range(len(tasks)))
    else:
        needs = dependencies(tasks)
    return TaskGraph(tasks=tuple(tasks), needs=needs, mode=mode)


def execute(schedule: TaskGraph, hands: Hands[T]) -> None:
    """Run a schedule; on return every task of the network is finished.

    Args:
        schedule: What to run.
        hands: The workers. Device tasks run on the calling thread.

    Raises:
        Exception: What ``hands`` raise.
    """
    flying: deque[tuple[int, T]] = deque()
    try:
        _execute(schedule, hands, flying)
    except BaseException:
        # Other replicas may wait for what the network has been given; let it end.
        for _, ticket in flying:
            with contextlib.suppress(Exception):
                hands.wait((ticket,))
        raise


def _execute(schedule: TaskGraph, hands: Hands[T], flying: deque[tuple[int, T]]) -> None:
    chooser = Chooser(schedule.tasks, schedule.needs, schedule.mode)
    left = len(schedule.tasks)
    while left:
        while flying and flying[0][1].done():
            index, ticket = flying.popleft()
            hands.wait((ticket,))  # raises what the task raised
            chooser.finish(index)
            left -= 1
        while (start := chooser.next_net()) is not None:
            flying.append((start, hands.start(start)))
        if (index := chooser.next_device()) is not None:
            hands.run(index)
            chooser.finish(index)
            left -= 1
        elif flying:
            hands.wait([ticket for _, ticket in flying])
