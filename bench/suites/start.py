"""From the start of a process to the loss of its first step, in processor seconds, by stage.

Those of processes that it starts count, too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.errors import WorkerFailed
from bench.measurement import OURS, Results
from bench.models import STARTED_ALONE
from bench.peers import REFERENCE, load
from bench.process import Contestant
from bench.suites import Settings

COMPILE, FIRST, SECOND = "compile", "first run", "second run"
"""What a user starts: this project's ``compile``, then ``run`` twice. Peers run alone."""

EXPORT = "torch.export"
"""``torch.export`` of the same model, in a process of its own."""

COLD, WARM = f"{FIRST}: wall", f"{SECOND}: wall"

COMPILED = "compile"
"""The peer that compiles, too; it keeps its own cache."""

STARTED = ("logreg-1", "lenet-32", "lstm", "gpt", "resnet18")
"""A selection: a cold ``torch.compile`` takes up to a minute each."""

OURS_ALONE = ("gpt2", "layers-12", "layers-48", "steps-50", "steps-200", "qwen3_next")
"""Cases whose start is measured for this project alone: no peer is asked for so long."""

HELP = ("samba", "samba launch", "samba compare", "bench")
"""Modules that are asked for their help text."""

_HELP_SECONDS = 60
_TURNS = 3
"""Processes of the second run, of which the best counts."""


def start(settings: Settings, results: Results) -> None:
    """Time processes from their start to the first loss, with a cache folder for each case.

    For this project a process compiles, and others run the PEF: the first makes the executables,
    the later ones find them.
    """
    turns = 1 if settings.quick else _TURNS
    for case in settings.cases:
        if case in STARTED:
            settings.tell(f"start: {case}")
            _ours(settings, results, case, turns)
            _measure(settings, results, case, REFERENCE, FIRST, turns)
            _measure(settings, results, case, REFERENCE, EXPORT, 1)
            _measure(settings, results, case, COMPILED, FIRST, 1)
            _measure(settings, results, case, COMPILED, SECOND, 1)
    if not settings.quick:
        for case in (c for c in OURS_ALONE if c in settings.cases or c in STARTED_ALONE):
            settings.tell(f"start: {case}")
            _ours(settings, results, case, turns if case in settings.cases else 1)
    for name in HELP:
        results.add("start", name, OURS, "help", "s", [_help(name) for _ in range(turns)])


def _ours(settings: Settings, results: Results, case: str, turns: int) -> None:
    for what, count in ((COMPILE, 1), (FIRST, 1), (SECOND, turns)):
        _measure(settings, results, case, OURS, what, count)


def _help(name: str) -> float:
    """Seconds until a command has printed its help text and ended."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", *name.split(), "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_HELP_SECONDS)
    return time.perf_counter() - begun


def _measure(
    settings: Settings, results: Results, case: str, name: str, what: str, turns: int
) -> None:
    """Start processes one after the other, and add what they took."""
    took: list[Mapping[str, float]] = []
    folder = settings.caches / f"start-{case}"
    folder.mkdir(exist_ok=True)
    try:
        for _ in range(turns):
            with settings.worker(case, name) as worker:
                took.append(worker.ask(stages, command=what, folder=str(folder)))
    except WorkerFailed as error:
        if name == OURS:
            raise
        results.fail("start", case, name, error.reason)
        return
    best = min(took, key=_processor)
    results.add("start", case, name, what, "s", [_processor(one) for one in took])
    for stage, seconds in best.items():
        results.add("start", case, name, f"{what}: {stage}", "s", [seconds])


def _processor(stages_: Mapping[str, float]) -> float:
    """Processor seconds of all stages."""
    return sum(seconds for stage, seconds in stages_.items() if stage != "wall")


def stages(contestant: Contestant, command: str, folder: str) -> dict[str, Any]:
    """Go from the start of this process to the loss of the first step; only as the first request.

    Args:
        contestant: Who is asked.
        command: ``COMPILE``, ``EXPORT``, ``FIRST`` or ``SECOND``.
        folder: Where this project's PEF lies.

    Returns:
        Processor seconds by stage; those of ``import`` begin with the process. ``wall`` has the
        seconds since the request.
    """
    begun = time.perf_counter()
    found: dict[str, float] = {}

    def mark(stage: str) -> None:
        found[stage] = processor_seconds() - sum(found.values())

    load(contestant.contender, contestant.case)
    mark("import")
    model = contestant.case.model()
    if command == EXPORT:
        from bench.peers.torch_step import exported  # noqa: PLC0415  # the library of the contender

        mark("model")
        exported(contestant.case, model)
        mark("export")
    elif contestant.contender == OURS:
        _run_ours(contestant, model, command, folder, mark)
    else:
        contestant.prepare(model)
        mark("model")
        [batch] = contestant.batches(1)
        contestant.step(batch)
        mark("first step")
    return {**found, "wall": time.perf_counter() - begun}


def _run_ours(
    contestant: Contestant, model: Any, command: str, folder: str, mark: Callable[[str], None]
) -> None:
    from bench.peers.ours import Script, step_of  # noqa: PLC0415  # the library of the contender
    from bench.peers.torch_step import to_torch  # noqa: PLC0415

    script = Script(contestant.case, model)
    mark("model")
    if command == COMPILE:
        script.compile(folder)
        mark("compile")
        return
    (pef,) = Path(folder).glob("*/*.pef")
    loss = script.load(str(pef))
    mark("trace")
    step_of(script, loss)(to_torch(contestant.case.batches()[0]))
    mark("first step")


_PROC = Path("/proc")


def processor_seconds() -> float:
    """User and system seconds of this process, of what it has started, and of what these started.

    ``torch.compile`` runs a C++ compiler in processes that its worker processes start.

    Returns:
        Seconds since this process began. Where there is no ``/proc``, a process that still runs is
        left out.

    Example:
        >>> processor_seconds() > 0
        True
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used) + sum(_running(os.getpid()))


def _running(root: int) -> Iterator[float]:
    """Seconds of each descendant that still runs, with those of its children that have ended."""
    stats = dict(_stats())
    tick = os.sysconf("SC_CLK_TCK")
    parents = {root}
    while parents:
        parents = {pid for pid, fields in stats.items() if int(fields[1]) in parents}
        for pid in parents:
            yield sum(map(int, stats[pid][11:15])) / tick


def _stats() -> Iterator[tuple[int, list[str]]]:
    """The fields of each process behind its name: state, parent, …, see proc(5)."""
    for folder in _PROC.glob("[0-9]*") if _PROC.is_dir() else ():
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        yield int(folder.name), text.rpartition(")")[2].split()
