"""One data parallel step of a program, simulated for any number of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emulator.memory.buckets import BufferMap
from emulator.plans.step_choice import StepKey, all_steps
from emulator.replicas.schedule import Mode, Task, prepare
from emulator.replicas.simulation.links import AllReduce, Cluster, all_reduce_seconds
from emulator.replicas.simulation.play import play
from emulator.replicas.tasks import planned_tasks
from pef_schema.errors import SambaError
from pef_schema.program import Program

__all__ = ["MissingTimes", "NothingToReduce", "PlannedStep", "StepTime", "planned_step"]


class NothingToReduce(SambaError):
    """A program was not compiled for replicas.

    Args:
        program: Its name.
    """

    def __init__(self, *, program: str) -> None:
        self.program = program
        super().__init__(
            f"program {program!r}: found no REDUCE step with gradients, wanted one. "
            "Compile it with --data-parallel."
        )


class MissingTimes(SambaError):
    """Sections of a step have no time.

    Args:
        missing: Their names, in the order of the schedule.
    """

    def __init__(self, *, missing: tuple[str, ...]) -> None:
        self.missing = missing
        shown = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        super().__init__(
            f"section times: found none of {shown}, wanted one of every section of the schedule. "
            "Measure all of them: measure-sections --json FILE."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """What a step of so many replicas takes.

    Args:
        replicas: How many.
        seconds: From the step's begin to its end.
        compute: Seconds of the device's tasks alone.
        communication: Seconds of all reductions, hidden or not.
    """

    replicas: int
    seconds: float
    compute: float
    communication: float

    @property
    def exposed(self) -> float:
        """Seconds of the step in which the device waits for the network, or is slowed by it."""
        return self.seconds - self.compute

    @property
    def efficiency(self) -> float:
        """The part of the step in which the device computes: 1 without communication."""
        return self.compute / self.seconds if self.seconds else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step divided into the tasks that the scheduler runs.

    Args:
        tasks: The tasks in the order of the PEF.
        pieces: ``(section, step)`` pairs of each task.
        nbytes: Bytes that each task reduces; 0 for those of the device.
    """

    tasks: tuple[Task, ...]
    pieces: tuple[StepKey, ...]
    nbytes: tuple[int, ...]

    def simulate(
        self,
        mode: Mode,
        device_seconds: Callable[[int], float],
        reduce_seconds: Callable[[int], float],
        *,
        replicas: int,
        processor_share: float = 0.0,
    ) -> StepTime:
        """Play the step.

        Args:
            mode: What may overlap and overtake.
            device_seconds: Time of a device task, by its index.
            reduce_seconds: Time of a reduction of so many bytes.
            replicas: How many there are.
            processor_share: See :func:`emulator.replicas.simulation.play.play`.

        Returns:
            Its times.
        """
        times = [
            (reduce_seconds(nbytes) if replicas > 1 else 0.0) if task.net else device_seconds(i)
            for i, (task, nbytes) in enumerate(zip(self.tasks, self.nbytes, strict=True))
        ]
        line = play(prepare(self.tasks, mode), times.__getitem__, processor_share=processor_share)
        nets = [task.net for task in self.tasks]
        return StepTime(
            replicas=replicas,
            seconds=line.total,
            compute=math.fsum(t for t, net in zip(times, nets, strict=True) if not net),
            communication=math.fsum(t for t, net in zip(times, nets, strict=True) if net),
        )

    def on_cluster(
        self,
        mode: Mode,
        device_seconds: Callable[[int], float],
        cluster: Cluster,
        algorithm: AllReduce,
        *,
        replicas: int,
    ) -> StepTime:
        """Play the step on hosts whose links work beside their processors.

        Args:
            mode: What may overlap and overtake.
            device_seconds: Time of a device task, by its index.
            cluster: The hosts and links.
            algorithm: How buckets are reduced.
            replicas: How many there are.

        Returns:
            Its times.
        """
        return self.simulate(
            mode,
            device_seconds,
            lambda nbytes: all_reduce_seconds(algorithm, cluster, replicas, nbytes),
            replicas=replicas,
        )

    def device_seconds(self, program: Program, seconds: Mapping[str, float]) -> list[float]:
        """Times of the tasks by those of the sections.

        Args:
            program: The program.
            seconds: Time of a call, by the section's name.

        Returns:
            Seconds of each task, 0 for reductions. A section whose steps are in several tasks is
            counted in each by its part of the steps.

        Raises:
            MissingTimes: If a section has none.
        """
        sections = program.sections
        missing = dict.fromkeys(
            sections[s].name
            for piece, task in zip(self.pieces, self.tasks, strict=True)
            for s, _ in piece
            if not task.net and sections[s].name not in seconds
        )
        if missing:
            raise MissingTimes(missing=tuple(missing))
        return [
            0.0
            if task.net
            else math.fsum(seconds[sections[s].name] / len(sections[s].steps) for s, _ in piece)
            for piece, task in zip(self.pieces, self.tasks, strict=True)
        ]


def planned_step(program: Program, graph: int = 0) -> PlannedStep:
    """Divide a full step of a program as a run of several replicas does.

    Args:
        program: The program, compiled for replicas.
        graph: Index of the graph.

    Returns:
        Its tasks.

    Raises:
        NothingToReduce: If it has no bucket.
    """
    buffer_map = BufferMap(program)
    buffer_map.use_buckets()
    if not buffer_map.buckets:
        raise NothingToReduce(program=program.name)
    pieces, tasks = planned_tasks(program, buffer_map, all_steps(program, graph))
    sizes = {b.step: b.size * b.dtype.itemsize for b in buffer_map.buckets}
    return PlannedStep(
        tasks=tuple(tasks),
        pieces=tuple(pieces),
        nbytes=tuple(sizes[p[0]] if task.net else 0 for p, task in zip(pieces, tasks, strict=True)),
    )
