"""Where the time of a step goes: XLA's thunks by kind, by operation, and the largest ones."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from bench.measurement import OURS, Results
from bench.suites import Settings

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
            found = worker.ask("thunks", count=min(STEPS, 2 * settings.rounds))
        add_thunks(case, found, results)


def add_thunks(case: str, found: dict[str, Any], results: Results) -> None:
    """Add what ``bench.inside.thunks`` found of a case; see :func:`thunks`."""

    def add(what: str, seconds: float, note: str = "") -> None:
        results.add("thunks", case, OURS, what, "s", [seconds], note=note)

    seen = found["thunks"]
    add(PLAIN, found["plain"])
    add(TRACED, found["traced"])
    add(IDLE, found["idle"], f"{len(seen)} thunks in the step")
    for start, key in ((KIND, "kind"), (OP, "op")):
        seconds: defaultdict[str, float] = defaultdict(float)
        calls: defaultdict[str, float] = defaultdict(float)
        for thunk in seen:
            name = thunk[key] or "(none)"
            seconds[name] += thunk["seconds"]
            calls[name] += thunk["calls"]
        for name in sorted(seconds, key=lambda name: -seconds[name]):
            share = seconds[name] / found["traced"]
            add(f"{start}{name}", seconds[name], f"{share:.1%}, {calls[name]:g} x")
    for thunk in seen[:LARGEST]:
        parts = [thunk[key] for key in ("kind", "shape", "section", "module", "op", "lines")]
        if thunk["kind"] in MOVES and thunk["argument"]:
            parts.append(f"of {thunk['argument']}")
        if thunk["elapsed"] > 1.05 * thunk["seconds"]:
            parts.append(f"{1e3 * thunk['elapsed']:.3f} ms beside others")
        add(f"{THUNK}{thunk['name']}", thunk["seconds"], "; ".join(part for part in parts if part))
