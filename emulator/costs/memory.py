"""The memory that steps take as one executable, along what they compute.

An executable has arguments, results that mostly take the place of arguments, and memory of its own.
The first two are the program's regions, to the byte. What lies in the third, and when, is a
prediction: compilers order, fuse and copy as they see fit, see docs/run.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from emulator.costs.buffers import Trace, trace
from emulator.costs.lifetimes import Lifetime, lifetimes
from emulator.costs.touched import Touched, touched
from pef_schema.program import Program, Role, Step

__all__ = ["Held", "MemoryNeed", "Moment", "memory_need", "schedule_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Something that is alive at a moment.

    Args:
        name: Of a region or a value.
        role: What it is.
        nbytes: Its bytes.
        region: Its region; -1 for a value inside the executable.
        graph, node: The node that makes the value, or whose gradient does; -1 for none.
    """

    name: str
    role: Role
    nbytes: int
    region: int = -1
    graph: int = -1
    node: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is alive while one thing is computed.

    Args:
        step: Position of the step.
        graph, node: The node that is computed; -1 for updates of regions.
        backward: Whether its gradient is.
        inside: Bytes by role of what the executable keeps for itself.
        scratch: Bytes that the node takes beside what it reads and makes.
    """

    step: int
    graph: int
    node: int
    backward: bool
    inside: tuple[tuple[Role, int], ...]
    scratch: int

    @property
    def total(self) -> int:
        """Bytes of the executable's own memory."""
        return self.scratch + sum(size for _, size in self.inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The memory that steps take as one executable.

    Args:
        argument: Bytes of what it takes.
        output: Bytes of what it gives back.
        alias: Those of them that take the place of an argument.
        outside: Bytes by role of arguments and results together.
        moments: What its own memory holds, in the order of what is computed.
        highest: The index of the first moment with most of it; -1 if nothing is computed.
    """

    argument: int
    output: int
    alias: int
    outside: tuple[tuple[Role, int], ...]
    moments: tuple[Moment, ...]
    highest: int
    _touched: Touched
    _traced: Trace
    _lifetimes: tuple[Lifetime, ...]

    @property
    def temp(self) -> int:
        """Most bytes of its own memory."""
        return self.moments[self.highest].total if self.highest >= 0 else 0

    @property
    def kept(self) -> int:
        """Bytes of arguments and results that hold something from run to run."""
        return sum(size for role, size in self.outside if not role.is_transient)

    @property
    def peak(self) -> int:
        """Most bytes altogether."""
        return self.argument + self.output - self.alias + self.temp

    def alive(self, program: Program, moment: int) -> tuple[Held, ...]:
        """What is alive at a moment, the largest first.

        Args:
            program: The program.
            moment: Index into ``moments``; -1 for what lies outside alone.

        Returns:
            Regions and values; equal sizes in the order of the regions, then in that of making.
        """
        regions = sorted(self._touched.takes | self._touched.gives)
        found = [
            Held(
                name=program.regions[r].name,
                role=program.regions[r].role,
                nbytes=program.regions[r].nbytes,
                region=r,
            )
            for r in regions
        ]
        # At its last moment another value may be written into the place of one.
        replaced = {one.instead for one in self._lifetimes if one.first == moment}
        for one in self._lifetimes if moment >= 0 else ():
            if one.first <= moment <= one.last and one.buffer not in replaced:
                buffer = self._traced.buffers[one.buffer]
                found.append(
                    Held(
                        name=buffer.name,
                        role=buffer.role,
                        nbytes=buffer.nbytes,
                        graph=buffer.graph,
                        node=buffer.node,
                    )
                )
        return tuple(sorted(found, key=lambda held: -held.nbytes))


def schedule_steps(program: Program, schedule: int) -> tuple[Step, ...]:
    """The steps of all calls of a schedule, in order.

    Args:
        program: The program.
        schedule: Index of the schedule.
    """
    calls = program.schedules[schedule].calls
    return tuple(step for call in calls for step in program.sections[call.section].steps)


def memory_need(
    program: Program,
    steps: Sequence[Step],
    *,
    seeded: Collection[int] = (),
    resting: Collection[int] | None = None,
) -> MemoryNeed:
    """Predict the memory that steps take as one executable.

    Args:
        program: The program.
        steps: Steps of its sections, in the order to run.
        seeded: Regions of gradients of outputs that the host has written.
        resting: Optimizers without momentum; None for those that start without.

    Example:
        >>> nothing = Program(
        ...     name="nothing", mapping="section", inference=True, regions=(), symbols=(),
        ...     graphs=(), optimizers=(), argins=(), sections=(), schedules=(),
        ... )
        >>> memory_need(nothing, ()).peak
        0
    """
    found = touched(program, steps, seeded=seeded, resting=resting)
    traced = trace(program, steps, seeded=seeded, resting=resting)
    lives = lifetimes(traced, found.gives)
    moments = _moments(traced, lives)
    size = {r: program.regions[r].nbytes for r in found.takes | found.gives}
    outside: dict[Role, int] = {}
    for r in sorted(size):
        role = program.regions[r].role
        outside[role] = outside.get(role, 0) + size[r]
    return MemoryNeed(
        argument=sum(size[r] for r in found.takes),
        output=sum(size[r] for r in found.gives),
        alias=sum(size[r] for r in found.takes & found.gives),
        outside=tuple(sorted(outside.items())),
        moments=moments,
        highest=max(range(len(moments)), key=lambda i: moments[i].total, default=-1),
        _touched=found,
        _traced=traced,
        _lifetimes=lives,
    )


def _moments(traced: Trace, lives: Sequence[Lifetime]) -> tuple[Moment, ...]:
    count = len(traced.works)
    changes: dict[Role, list[int]] = {}
    for one in lives:
        buffer = traced.buffers[one.buffer]
        steps = changes.setdefault(buffer.role, [0] * (count + 1))
        steps[one.first] += buffer.nbytes
        steps[one.last + 1] -= buffer.nbytes
        if one.instead >= 0:  # both are alive at this moment, in one place
            replaced = traced.buffers[one.instead]
            taken = changes[replaced.role]
            taken[one.first] -= replaced.nbytes
            taken[one.first + 1] += replaced.nbytes
    held = dict.fromkeys(sorted(changes), 0)
    found: list[Moment] = []
    for at, work in enumerate(traced.works):
        for role in held:
            held[role] += changes[role][at]
        found.append(
            Moment(
                step=work.step,
                graph=work.graph,
                node=work.node,
                backward=work.backward,
                inside=tuple((role, size) for role, size in held.items() if size),
                scratch=work.scratch,
            )
        )
    return tuple(found)
