"""A schedule played on a device and a network that may share a processor."""

from __future__ import annotations

from collections.abc import Callable

from emulator.replicas.schedule import Chooser, Mode, TaskGraph, Timeline

_DONE = 1e-12


def play(
    schedule: TaskGraph, duration: Callable[[int], float], *, processor_share: float = 0.0
) -> Timeline:
    """Play a schedule; the scheduler's own :class:`Chooser` says what starts when.

    Args:
        schedule: What to play.
        duration: Seconds that a task takes while the other resource is idle.
        processor_share: The part of a reduction's time that is work of the processor that the
            device computes on. While both are busy each goes on at 1 / (1 + share) of its speed:
            with 0 they do not disturb each other, with 1 nothing is won by overlap.

    Returns:
        Start and end of every task.

    Example:
        >>> from emulator.replicas.schedule import Task, prepare
        >>> none = frozenset()
        >>> tasks = [Task(name=n, reads=none, writes=none, net=n == "r") for n in "rd"]
        >>> graph = prepare(tasks, Mode.INORDER)
        >>> [play(graph, lambda i: 1.0, processor_share=share).total for share in (0.0, 1.0)]
        [1.0, 2.0]
    """
    tasks, mode = schedule.tasks, schedule.mode
    chooser = Chooser(tasks, schedule.needs, mode)
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    running: dict[bool, int] = {}
    left: dict[bool, float] = {}
    now, undone = 0.0, len(tasks)

    def begin(index: int) -> None:
        resource = tasks[index].net
        starts[index] = now
        running[resource], left[resource] = index, duration(index)

    while undone:
        if mode is Mode.NORMAL:
            if (index := chooser.next_serial()) is not None:
                begin(index)
        else:
            if True not in running and (index := chooser.next_net()) is not None:
                begin(index)
            if False not in running and (index := chooser.next_device()) is not None:
                begin(index)
        speed = 1.0 if len(running) == 1 else 1.0 / (1.0 + processor_share)
        passed = min(left[resource] for resource in running)
        now += passed / speed
        for resource in sorted(running):
            left[resource] -= passed
            if left[resource] <= _DONE * max(1.0, passed):
                index = running.pop(resource)
                ends[index] = now
                chooser.finish(index)
                undone -= 1
    return Timeline(starts=tuple(starts), ends=tuple(ends))
