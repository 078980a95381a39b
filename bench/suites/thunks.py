"""Where the time of a step goes: XLA's thunks by kind, by operation, and the largest ones.

Jax's profiler sees them. Time in which several thunks run is divided among them, so that all times
add up to the step's.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax

from bench.measurement import OURS, Results
from bench.peers.ours import all_steps, loaded
from bench.process import Contestant, seconds_of
from bench.suites import Settings
from emulator.ops.registry import load_ops
from emulator.plans.hlo_text import CONTAINERS, Module, parsed
from emulator.plans.kernel_trace import Event, KernelTrace, thunks_of
from pef_schema.program import SectionKind

if TYPE_CHECKING:
    from emulator.plans.plan import Plan
    from pef_schema.program import Program

KIND, OP, THUNK = "kind: ", "op: ", "thunk: "
"""How the quantities of this suite begin."""

PLAIN, TRACED, IDLE = "(step)", "(step under the profiler)", "(no thunk runs)"

LARGEST = 15
"""Single thunks that are kept, beside all kinds and operations."""

MOVES = ("copy", "transpose")
"""Kinds of thunks that only move what they take."""

STEPS = 12


def thunks(settings: Settings, results: Results) -> None:
    """Take the time of every thunk of a full step, in a process that does nothing else.

    Adds seconds of a step without and with the profiler, of all thunks together, by kind of
    instruction, by operation, and of the largest thunks, whose notes say where they come from.
    """
    for case in settings.cases:
        settings.tell(f"thunks: {case}")
        with settings.worker(case, OURS) as worker:
            result = worker.ask(thunk_seconds, count=min(STEPS, 2 * settings.rounds))
        add_thunks(case, result, results)


def add_thunks(case: str, result: dict[str, Any], results: Results) -> None:
    """Add what :func:`thunk_seconds` found of a case; see :func:`thunks`."""

    def add(what: str, seconds: float, note: str = "") -> None:
        results.add("thunks", case, OURS, what, "s", [seconds], note=note)

    seen = result["thunks"]
    add(PLAIN, result["plain"])
    add(TRACED, result["traced"])
    add(IDLE, result["idle"], f"{len(seen)} thunks in the step")
    for start, key in ((KIND, "kind"), (OP, "op")):
        seconds: defaultdict[str, float] = defaultdict(float)
        calls: defaultdict[str, float] = defaultdict(float)
        for thunk in seen:
            name = thunk[key] or "(none)"
            seconds[name] += thunk["seconds"]
            calls[name] += thunk["calls"]
        for name in sorted(seconds, key=lambda name: -seconds[name]):
            share = seconds[name] / result["traced"]
            add(f"{start}{name}", seconds[name], f"{share:.1%}, {calls[name]:g} x")
    for thunk in seen[:LARGEST]:
        parts = [thunk[key] for key in ("kind", "shape", "section", "module", "op", "lines")]
        if thunk["kind"] in MOVES and thunk["argument"]:
            parts.append(f"of {thunk['argument']}")
        if thunk["elapsed"] > 1.05 * thunk["seconds"]:
            parts.append(f"{1e3 * thunk['elapsed']:.3f} ms beside others")
        add(f"{THUNK}{thunk['name']}", thunk["seconds"], "; ".join(part for part in parts if part))


STEP = "bench step"
"""Name of the events around steps."""

WARM = 5
"""Steps before the profiler starts."""

_ARGUMENT = re.compile(r"arrays\[(\d+)\]$")
_SCOPE = re.compile(r"jit\((.*?)\)$")

_NOWHERE: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("section", "op", "module", "lines"), "")
)


def thunk_seconds(contestant: Contestant, count: int) -> dict[str, Any]:
    """Run steps under jax's profiler.

    The profiler is stopped at the end, and what it wrote is removed: later steps run as before.

    Args:
        contestant: This project.
        count: Steps.

    Returns:
        ``plain`` and ``traced``: seconds of a step without and with the profiler; ``thunks``: for
        every thunk ``name``, ``kind``, ``shape``, ``seconds``, ``elapsed`` and ``calls`` of a step,
        and where it comes from: ``section``, ``op``, ``module``, ``lines`` of the model's source,
        and ``argument``, the region it takes first; each empty where nothing is known. ``idle`` are
        the seconds of a step in which no thunk runs: the host's, and dispatch.
    """
    step = contestant.step
    device = loaded().device
    plan = device.plan(all_steps(device.program), whole=True)  # its instructions have names
    for batch in contestant.batches(WARM):
        step(batch)
    plain = _timed(step, contestant.batches(count))
    trace = KernelTrace()
    try:
        traced = _timed(step, contestant.batches(count))
    finally:
        events = trace.stop()
    module = parsed(plan.executables[0].as_text())
    result = step_times(events, module)
    origin = _Origin(device.program, plan, module)
    return {
        "plain": plain,
        "traced": traced,
        "idle": result.idle,
        "thunks": [
            {
                "name": name,
                "kind": module.kind(name),
                "seconds": seconds,
                "elapsed": result.elapsed[name],
                "calls": result.calls[name],
                "shape": module.instructions[name].shape,
                **origin.of(name),
            }
            for name, seconds in sorted(result.seconds.items(), key=lambda pair: -pair[1])
        ],
    }


def _timed(step: Callable[[Any], object], batches: Sequence[Any]) -> float:
    """Median seconds of steps, each an event where the profiler looks."""
    times: list[float] = []
    for batch in batches:
        with jax.profiler.TraceAnnotation(STEP):
            times.append(seconds_of(functools.partial(step, batch)))
    return statistics.median(times)


class _Origin:
    """Says which operation of the model an instruction is of."""

    def __init__(self, program: Program, plan: Plan, module: Module) -> None:
        self._module = module
        self._arguments = [
            program.regions[home].name if home < len(program.regions) else "" for home in plan.reads
        ]
        self._sections = {section.name for section in program.sections}
        self._optimizers = {
            section.name
            for section in program.sections
            if any(step.kind is SectionKind.OPT for step in section.steps)
        }
        self._lines: dict[tuple[str, str], list[str]] = {}
        for graph in program.graphs:
            for node in graph.nodes:
                lines = self._lines.setdefault((node.module or node.op, node.op), [])
                line = Path(node.source).name
                if line and line not in lines:
                    lines.append(line)

    def of(self, name: str) -> Mapping[str, str]:
        """``section``, ``op``, ``module``, ``lines`` and ``argument``."""
        module, own = self._module, self._module.instructions[name]
        # What XLA made by itself has no name: it is for those that take it, or of what it takes.
        others = [*module.users(name), *own.operands]
        says = [module.says(n) for n in (name, *others) if n in module.instructions]
        places = [place for place in map(self._place, says) if place is not None]
        best = next((p for p in places if p["section"] not in self._optimizers), None)
        place = self._place(says[0]) or best or (places[0] if places else _NOWHERE)
        return {**place, "argument": self._argument(own.operands)}

    def _place(self, says: str) -> Mapping[str, str] | None:
        parts = says.split("/")
        at = next((i for i, part in enumerate(parts) if part in self._sections), None)
        if at is None:
            return None
        module = parts[at + 1] if at + 1 < len(parts) else ""
        call = _SCOPE.match(parts[at + 2]) if at + 2 < len(parts) else None
        op = call[1] if call else self._loop(module)
        key = module.removesuffix("__grad"), op.removesuffix("__grad")
        lines = ", ".join(self._lines.get(key, ()))
        return {"section": parts[at], "op": op, "module": module, "lines": lines}

    def _loop(self, module: str) -> str:
        """The op of a module that is a loop: those are traced without a scope of their op."""
        specs, of = load_ops(), module.removesuffix("__grad")
        ops = [op for name, op in self._lines if name == of and op in specs and specs[op].loops]
        ending = "__grad" if module.endswith("__grad") else ""
        return f"{ops[0]}{ending}" if len(ops) == 1 else ""

    def _argument(self, operands: Sequence[str]) -> str:
        """The region that an instruction takes first, if it takes one."""
        for operand in operands[:1]:
            of = self._module.instructions.get(operand)
            match = _ARGUMENT.search(of.op_name) if of is not None else None
            if match is not None and int(match[1]) < len(self._arguments):
                return self._arguments[int(match[1])]
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What the thunks of a step take.

    Args:
        seconds: Of a step, by instruction: its share of the time in which it runs. They sum up to
            the step's time except that in which no thunk runs.
        elapsed: The same in full, however many run beside one another.
        calls: How often it runs in a step.
        idle: Seconds of a step in which no thunk runs.
    """

    seconds: Mapping[str, float]
    elapsed: Mapping[str, float]
    calls: Mapping[str, float]
    idle: float


def step_times(events: Iterable[Event], module: Module) -> Times:
    """Divide the time of steps among their thunks.

    Args:
        events: What the profiler saw, of all threads, one ``STEP`` for each step among them.
        module: The module that ran; events of other names are left out.

    Returns:
        Medians over the steps. A loop has the time in which nothing of its body runs.

    Example:
        >>> from emulator.plans.hlo_text import parsed
        >>> module = parsed('''ENTRY %main (x: f32[]) -> f32[] {
        ...   %x = f32[] parameter(0)
        ...   %c = f32[] convolution(%x, %x)
        ...   ROOT %d = f32[] dot(%x, %x)
        ... }''')
        >>> found = step_times([(STEP, 0.0, 1.0), ("c", 0.1, 0.2), ("end: c", 0.7, 0.7),
        ...     ("d", 0.3, 0.5), ("other", 0.0, 0.9)], module)
        >>> {name: round(s, 3) for name, s in found.seconds.items()}, round(found.idle, 3)
        ({'c': 0.5, 'd': 0.1}, 0.4)
        >>> {name: round(s, 3) for name, s in found.elapsed.items()}
        {'c': 0.6, 'd': 0.2}
        >>> step_times([(STEP, 0.0, 1.0), ("d", 0.3, 0.5)], module).calls
        {'d': 1.0}
    """
    steps, ran = _intervals(events, module)
    seconds: list[dict[str, float]] = []
    elapsed: list[dict[str, float]] = []
    calls: defaultdict[str, float] = defaultdict(float)
    idle: list[float] = []
    for begin, finish in steps:
        inside = [(name, start, end) for name, start, end in ran if begin <= start < finish]
        shares = _shares(inside, module)
        seconds.append(shares)
        full: defaultdict[str, float] = defaultdict(float)
        elapsed.append(full)
        for name, start, end in inside:
            full[name] += end - start
            calls[name] += 1
        idle.append(finish - begin - sum(shares.values()))
    return Times(
        seconds=_medians(seconds),
        elapsed=_medians(elapsed),
        calls={name: number / len(steps) for name, number in calls.items()},
        idle=statistics.median(idle),
    )


def _medians(counted: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for step in counted for name in step)
    return {name: statistics.median(step.get(name, 0.0) for step in counted) for name in names}


def _intervals(
    events: Iterable[Event], module: Module
) -> tuple[list[tuple[float, float]], list[Event]]:
    """Beginnings and ends of the steps, and of all thunks."""
    seen = list(events)
    steps = sorted((start, end) for name, start, end in seen if name == STEP)
    return steps, thunks_of(seen, module.instructions)


def _shares(ran: Sequence[Event], module: Module) -> dict[str, float]:
    """The time in which thunks run, divided equally among those that run at a time."""
    changes = sorted(
        [(start, 1, name) for name, start, _ in ran] + [(end, 0, name) for name, _, end in ran]
    )
    shares: defaultdict[str, float] = defaultdict(float)
    running: Counter[str] = Counter()
    before = 0.0
    for at, begins, name in changes:
        if running and at > before:
            leaves = [n for n in running if module.instructions[n].opcode not in CONTAINERS]
            # Of loops within loops the last one that began is the innermost.
            for one in leaves or list(running)[-1:]:
                shares[one] += (at - before) / len(leaves or "1")
        before = at
        if begins:
            running[name] += 1
        elif running[name] > 1:
            running[name] -= 1
        else:
            del running[name]
    return shares
