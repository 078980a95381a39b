"""Where a step's time goes: the time of each XLA thunk, by jax's profiler."""

from __future__ import annotations

import contextlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax

from bench.inside import Contestant
from bench.inside.sections import all_steps, device_of_session
from bench.inside.thunk_times import STEP, step_times
from emulator.ops.registry import load_ops
from emulator.plans.kernel_trace import Event, Module, parsed
from pef_schema.program import SectionKind

if TYPE_CHECKING:
    from emulator.plans.plan import Plan
    from pef_schema.program import Program

WARM = 5
"""Steps before the profiler starts."""

_ARGUMENT = re.compile(r"arrays\[(\d+)\]$")
_SCOPE = re.compile(r"jit\((.*?)\)$")

_NOWHERE: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("section", "op", "module", "lines"), "")
)


def thunks(contestant: Contestant, count: int) -> dict[str, Any]:
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
    device = device_of_session()
    plan = device.plan(all_steps(device.program), whole=True)  # its instructions have names
    for batch in contestant.batches(WARM):
        step(batch)
    plain = _timed(step, contestant.batches(count))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            traced = _timed(step, contestant.batches(count), _noted)
        (file,) = Path(folder).rglob("*.xplane.pb")
        events = _events(file)
    module = parsed(plan.executables[0].as_text())
    found = step_times(events, module)
    origin = _Origin(device.program, plan, module)
    return {
        "plain": plain,
        "traced": traced,
        "idle": found.idle,
        "thunks": [
            {
                "name": name,
                "kind": module.kind(name),
                "seconds": seconds,
                "elapsed": found.elapsed[name],
                "calls": found.calls[name],
                "shape": module.instructions[name].shape,
                **origin.of(name),
            }
            for name, seconds in sorted(found.seconds.items(), key=lambda pair: -pair[1])
        ],
    }


def _noted(name: str) -> AbstractContextManager[object]:
    """An event in what the profiler writes."""
    return jax.profiler.TraceAnnotation(name)


def _timed(
    step: Callable[[Any], object],
    batches: Sequence[Any],
    noted: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
) -> float:
    """Median seconds of steps, each ``noted`` by name."""
    times: list[float] = []
    for batch in batches:
        start = time.perf_counter()
        with noted(STEP):
            step(batch)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _events(file: Path) -> list[Event]:
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    return [
        (event.name, event.start_ns, event.start_ns + event.duration_ns)
        for plane in planes
        for line in plane.lines
        for event in line.events
    ]


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
        found = [place for place in map(self._place, says) if place is not None]
        best = next((p for p in found if p["section"] not in self._optimizers), None)
        place = self._place(says[0]) or best or (found[0] if found else _NOWHERE)
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
        found = [op for name, op in self._lines if name == of and op in specs and specs[op].loops]
        ending = "__grad" if module.endswith("__grad") else ""
        return f"{found[0]}{ending}" if len(found) == 1 else ""

    def _argument(self, operands: Sequence[str]) -> str:
        """The region that an instruction takes first, if it takes one."""
        for operand in operands[:1]:
            of = self._module.instructions.get(operand)
            found = _ARGUMENT.search(of.op_name) if of is not None else None
            if found is not None and int(found[1]) < len(self._arguments):
                return self._arguments[int(found[1])]
        return ""
