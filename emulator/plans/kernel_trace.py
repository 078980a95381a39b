"""What executables do inside, as jax's profiler sees it: their thunks, with their times.

The profiler writes one event for a thunk's start and one for its end, which may come on another
thread: convolutions and some products go on there after the first event has ended.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import DeviceError
from emulator.handler_errors import raise_error_of_handler

__all__ = [
    "END",
    "Event",
    "Instruction",
    "KernelTrace",
    "Module",
    "ProfilerInUse",
    "parsed",
    "thunks_of",
]

END = "end: "
"""How the name of a thunk's second event begins."""
_MARK = "samba kernel trace"
"""The event by which the profiler's clock is compared with that of the process."""

Event = tuple[str, float, float]
"""Name, start and end; which unit the times have depends on the source."""


class ProfilerInUse(DeviceError):
    """jax's profiler, of which a process has one, is running already.

    Attributes:
        problem: What jax says.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"jax's profiler cannot be started ({problem}). Stop the trace that is being taken, "
            "by jax.profiler.stop_trace(), or do without kernels."
        )


class KernelTrace:
    """What jax's profiler sees from now on.

    Raises:
        ProfilerInUse: If it is running already.
    """

    def __init__(self) -> None:
        profiler = _profiler()
        self._folder = tempfile.TemporaryDirectory()
        options = profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            profiler.start_trace(self._folder.name, profiler_options=options)
        except Exception as error:
            raise_error_of_handler(error)
            self._folder.cleanup()
            raise ProfilerInUse(str(error).partition("\n")[0].rstrip(".")) from error
        with profiler.TraceAnnotation(_MARK):
            self._marked = time.perf_counter()

    def stop(self) -> list[Event]:
        """Stop the profiler.

        Returns:
            All events of all threads, in seconds as ``time.perf_counter()`` counts them; none if
            somebody else has stopped the profiler before.
        """
        profiler = _profiler()
        try:
            profiler.stop_trace()
            files = sorted(Path(self._folder.name).rglob("*.xplane.pb"))
            events: list[Event] = [
                (event.name, event.start_ns, event.start_ns + event.duration_ns)
                for file in files
                for plane in profiler.ProfileData.from_file(str(file)).planes
                for line in plane.lines
                for event in line.events
            ]
        except RuntimeError:  # there is no trace to stop
            return []
        finally:
            self._folder.cleanup()
        begun = next((start for name, start, _ in events if name == _MARK), None)
        if begun is None:
            return []
        return [
            (name, self._marked + 1e-9 * (start - begun), self._marked + 1e-9 * (end - begun))
            for name, start, end in events
        ]


def _profiler() -> Any:
    import jax  # noqa: PLC0415  # whoever takes no kernels may do without jax

    return jax.profiler


def thunks_of(events: Iterable[Event], known: Container[str]) -> list[Event]:
    """The thunks among the events of one executable.

    Args:
        events: Of all threads.
        known: Names of its instructions; events of other names are left out.

    Returns:
        Each with the time from its first event to the end of its last, in the order of names'
        first events.

    Example:
        >>> thunks_of([("c", 1.0, 2.0), ("end: c", 7.0, 7.0), ("d", 3.0, 5.0),
        ...     ("other", 0.0, 9.0)], {"c", "d"})
        [('c', 1.0, 7.0), ('d', 3.0, 5.0)]
    """
    starts: dict[str, list[tuple[float, float]]] = {}
    ends: dict[str, list[float]] = {}
    for name, start, end in events:
        if name in known:
            starts.setdefault(name, []).append((start, end))
        elif name.startswith(END):
            ends.setdefault(name.removeprefix(END), []).append(start)
    ran: list[Event] = []
    for name, begun in starts.items():
        begun.sort()
        ended = sorted(ends.get(name, ()))
        if len(ended) != len(begun):  # some thunks have no second event
            ended = [end for _, end in begun]
        ran += [(name, start, max(end, at)) for (start, end), at in zip(begun, ended, strict=True)]
    return ran


_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?(?:->.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=(\{[^}]*\}|%[\w.\-]+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LIBRARY = re.compile(r'"?kind"?:"?__(\w+?)_fusion')

MOVES = frozenset({"copy", "transpose", "reshape", "bitcast", "slice", "concatenate", "pad"})
"""Instructions that compute nothing."""

NAMED = ("convolution", "dot", "reduce-window", "scatter", "sort", "gather", "reduce")
"""A fusion is named after the first of these instructions that it has."""

RENAMES = frozenset({"bitcast", "get-tuple-element"})
"""Instructions that pass on what they take."""

CONTAINERS = frozenset({"call", "while", "conditional"})
"""Instructions whose time is that of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    Args:
        name: Its name in the module.
        opcode: What it does, as HLO calls it.
        shape: Of its result, without layouts.
        operands: Names of what it takes.
        calls: Computations it calls.
        op_name: jax's name stack, empty where there is none.
        target: Of a custom call, the function; of a fusion that a library runs, the library.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    calls: tuple[str, ...]
    op_name: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Instructions by name, names by computation, and names of the instructions that take each."""

    instructions: Mapping[str, Instruction]
    computations: Mapping[str, tuple[str, ...]]
    taken_by: Mapping[str, list[str]]

    def within(self, name: str) -> list[Instruction]:
        """Instructions of the computations that one calls, and of those that they call."""
        found: list[Instruction] = []
        waiting = list(self.instructions[name].calls)
        while waiting:
            for inner in self.computations.get(waiting.pop(), ()):
                found.append(self.instructions[inner])
                waiting += found[-1].calls
        return found

    def kind(self, name: str) -> str:
        """What an instruction's time is spent on: ``dot``, ``convolution``, ``fusion``, …

        A fusion is named after the weightiest instruction in it, with what runs it where that is
        a library.
        """
        of = self.instructions[name]
        if of.opcode == "custom-call":
            return f"custom call {of.target}"
        if of.opcode != "fusion":
            return of.opcode
        inner = [i.opcode for i in self.within(name)]
        library = f" ({of.target})" if of.target else ""
        for opcode in NAMED[:3] if of.target else NAMED:
            if opcode in inner:
                return (
                    f"{opcode}{library}" if library or opcode in NAMED[:3] else f"fusion, {opcode}"
                )
        work = set(inner) - {"parameter", "constant", "tuple", "broadcast"}
        if work and work <= MOVES:
            return "transpose" if "transpose" in work else "copy"
        return f"fusion{library}"

    def says(self, name: str) -> str:
        """jax's name stack of an instruction, or of what it is made of where it has none."""
        names = [self.instructions[name].op_name, *(i.op_name for i in self.within(name))]
        # Parts of a reduction have a name without a stack.
        return next((n for n in names if "/" in n), "")

    def users(self, name: str) -> list[str]:
        """Instructions that take the result of one, and of those among them that rename it."""
        found: list[str] = []
        for user in self.taken_by.get(name, ()):
            renames = self.instructions[user].opcode in RENAMES
            found += [user, *(self.users(user) if renames else ())]
        return found


def parsed(text: str) -> Module:
    """Read a module.

    Args:
        text: As ``jax.stages.Compiled.as_text`` gives it.

    Returns:
        Its instructions.

    Example:
        >>> module = parsed('''HloModule jit_f
        ...
        ... %fused (p: f32[2,3]) -> f32[3,2] {
        ...   %p = f32[2,3]{1,0} parameter(0)
        ...   ROOT %t = f32[3,2]{1,0} transpose(%p), dimensions={1,0}, metadata={op_name="f/g"}
        ... }
        ...
        ... ENTRY %main (x: f32[2,3]) -> f32[3,2] {
        ...   %x = f32[2,3]{1,0} parameter(0)
        ...   ROOT %turn = f32[3,2]{1,0} fusion(%x), kind=kLoop, calls=%fused
        ... }''')
        >>> module.kind("turn"), module.says("turn"), module.instructions["turn"].shape
        ('transpose', 'f/g', 'f32[3,2]')
    """
    instructions: dict[str, Instruction] = {}
    computations: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if not line.startswith((" ", "}", "HloModule")) and line.endswith("{"):
            head = _COMPUTATION.match(line)
            if head is not None:
                current = computations.setdefault(head[2], [])
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, shape, opcode, rest = found.groups()
        arguments = rest.partition(")")[0]
        instructions[name] = Instruction(
            name=name,
            opcode=opcode,
            shape=re.sub(r"\{[^}]*\}|/\*.*?\*/", "", shape),
            operands=tuple(_OPERAND.findall(arguments)),
            calls=tuple(_names(_CALLED.findall(rest))),
            op_name=_first(_OP_NAME, rest),
            target=_first(_TARGET, rest) or _first(_LIBRARY, rest.replace("\\", "")),
        )
        current.append(name)
    taken_by: dict[str, list[str]] = {}
    for name, of in instructions.items():
        for operand in of.operands:
            taken_by.setdefault(operand, []).append(name)
    return Module(
        instructions=instructions,
        computations={name: tuple(inner) for name, inner in computations.items()},
        taken_by=taken_by,
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _names(lists: Iterable[str]) -> list[str]:
    return [name for text in lists for name in _OPERAND.findall(text)]
