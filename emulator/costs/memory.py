"""Which values of an executable lie in memory, and from when to when.

What is elementwise is computed within what reads it, where all that read it can hold it; what it
reads itself then has to be there for these. A result takes the place of what it was made from where
that ends there, element by element.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from emulator.costs.buffers import Buffer, Trace, Work, buffer_of, trace
from emulator.costs.touched import Touched, touched
from emulator.op_facts.facts import Fusing
from pef_schema.program import Program, Role, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """A value that lies in memory of the executable's own.

    Args:
        buffer: Index into ``Trace.buffers``.
        first: Position of the work that makes it.
        last: Position of the last work that reads it.
        instead: The buffer whose place it takes; -1 for none.
    """

    buffer: int
    first: int
    last: int
    instead: int = -1


def lifetimes(traced: Trace, gives: Collection[int]) -> tuple[Lifetime, ...]:
    """When which values are alive in the memory that an executable takes for itself.

    Args:
        traced: What it computes.
        gives: Regions that it gives back.

    Returns:
        A lifetime for each value that is neither an argument nor a result, and not computed within
        what reads it, in the order in which they are made.
    """
    works = traced.works
    left = {buffer for region, buffer in traced.left.items() if region in gives}
    arguments = set(traced.given.values())
    outside = arguments | left | _places_of_results(works, left, arguments)
    read = _read_at(traced, outside)
    ends: dict[int, int] = {}
    for at, buffers in enumerate(read):
        for buffer in buffers:
            ends[buffer] = at
    lives: list[Lifetime] = []
    for at, work in enumerate(works):
        free = [
            b
            for b in read[at]
            if work.fusing.holds and ends[b] == at and b not in outside and traced.buffers[b].nbytes
        ]
        for buffer in work.makes:
            size = traced.buffers[buffer].nbytes
            if buffer in outside or not size or buffer not in ends:
                continue
            fits = [b for b in free if traced.buffers[b].nbytes == size]
            instead = fits[0] if fits else -1
            if fits:
                free.remove(instead)
            lives.append(Lifetime(buffer=buffer, first=at, last=ends[buffer], instead=instead))
    return tuple(lives)


def _places_of_results(works: Sequence[Work], left: set[int], arguments: set[int]) -> set[int]:
    """Values in whose place a result of the executable is written, element by element."""
    last: dict[int, int] = {}
    for at, work in enumerate(works):
        for buffer in work.reads:
            last[buffer] = at
    buffers: set[int] = set()
    for at in range(len(works) - 1, -1, -1):
        work = works[at]
        if work.fusing is not Fusing.CHEAP or len(work.makes) != 1:
            continue
        if work.makes[0] in left | buffers:
            ending = [b for b in work.reads if last[b] == at and b not in left | arguments]
            buffers.update(ending[:1])
    return buffers


def _read_at(traced: Trace, outside: set[int]) -> list[tuple[int, ...]]:
    """Buffers in memory that each work reads, by itself or for what is computed within it."""
    works = traced.works
    readers: dict[int, list[Work]] = {}
    for work in works:
        for buffer in work.reads:
            readers.setdefault(buffer, []).append(work)
    within: dict[int, tuple[int, ...]] = {}
    by_work: list[tuple[int, ...]] = []
    for work in works:
        reads: dict[int, None] = {}
        for buffer in work.reads:
            reads.update(dict.fromkeys(within.get(buffer, (buffer,))))
        by_work.append(tuple(reads))
        for buffer in work.makes:
            if buffer not in outside and _is_within(work, readers.get(buffer, ())):
                within[buffer] = tuple(reads)
    # A buffer that is read only for values computed within other works is read by those works.
    for at, work in enumerate(works):
        if work.makes and all(b in within for b in work.makes):
            by_work[at] = ()
    return by_work


def _is_within(work: Work, readers: Sequence[Work]) -> bool:
    """Whether a result is computed within what reads it."""
    if work.fusing is Fusing.CHEAP:
        return all(reader.fusing.holds for reader in readers)
    return work.fusing is Fusing.DEAR and len(readers) == 1 and readers[0].fusing.holds


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
        alias: Bytes of results that take the place of an argument.
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

    def alive(self, program: Program, moment: int) -> tuple[Buffer, ...]:
        """What is alive at a moment, the largest first.

        Args:
            program: The program.
            moment: Index into ``moments``; -1 for what lies outside alone.

        Returns:
            Regions and values; equal sizes in the order of the regions, then in that of making.
        """
        regions = sorted(self._touched.takes | self._touched.gives)
        buffers = [buffer_of(program, r) for r in regions]
        # At its last moment another value may be written into the place of one.
        replaced = {one.instead for one in self._lifetimes if one.first == moment}
        for one in self._lifetimes if moment >= 0 else ():
            if one.first <= moment <= one.last and one.buffer not in replaced:
                # What is to be written to a region lies inside until the executable ends.
                buffers.append(replace(self._traced.buffers[one.buffer], region=-1))
        return tuple(sorted(buffers, key=lambda buffer: -buffer.nbytes))


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
    regions = touched(program, steps, seeded=seeded, resting=resting)
    traced = trace(program, steps, seeded=seeded, resting=resting)
    lives = lifetimes(traced, regions.gives)
    moments = _moments(traced, lives)
    size = {r: program.regions[r].nbytes for r in regions.takes | regions.gives}
    outside: dict[Role, int] = {}
    for r in sorted(size):
        role = program.regions[r].role
        outside[role] = outside.get(role, 0) + size[r]
    return MemoryNeed(
        argument=sum(size[r] for r in regions.takes),
        output=sum(size[r] for r in regions.gives),
        alias=sum(size[r] for r in regions.takes & regions.gives),
        outside=tuple(sorted(outside.items())),
        moments=moments,
        highest=max(range(len(moments)), key=lambda i: moments[i].total, default=-1),
        _touched=regions,
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
            role_changes = changes[replaced.role]
            role_changes[one.first] -= replaced.nbytes
            role_changes[one.first + 1] += replaced.nbytes
    sizes = dict.fromkeys(sorted(changes), 0)
    moments: list[Moment] = []
    for at, work in enumerate(traced.works):
        for role in sizes:
            sizes[role] += changes[role][at]
        moments.append(
            Moment(
                step=work.step,
                graph=work.graph,
                node=work.node,
                backward=work.backward,
                inside=tuple((role, size) for role, size in sizes.items() if size),
                scratch=work.scratch,
            )
        )
    return tuple(moments)
