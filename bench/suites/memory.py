"""Peak memory of a step in a fresh process; ``bench.inside.memory`` says how."""

from __future__ import annotations

from bench.errors import WorkerFailed
from bench.measurement import ALLOC, OURS, Results
from bench.peers import CONTENDERS, REFERENCE
from bench.suites import Settings


def memory(settings: Settings, results: Results) -> None:
    """Measure the peak of a step, of this project and of eager unless told whose.

    One process at a time: beside another one the peaks came out lower. What an earlier suite left
    in the compilers' caches is used, and a process that compiles nothing needs less.

    Adds ``peak``, what the model needs beyond the started libraries, and ``process``, everything.
    """
    for case in settings.cases:
        settings.tell(f"memory: {case}")
        everyone = set(settings.contenders) == set(CONTENDERS)
        for name in (OURS, REFERENCE) if everyone else settings.contenders:
            if name.endswith(ALLOC):
                continue
            try:
                with settings.worker(case, name) as worker:
                    found = worker.ask("memory", warm=3, count=5)
            except WorkerFailed as error:
                if name == OURS:
                    raise
                results.fail("memory", case, name, error.reason)
                continue
            net = found["peak"] - found["baseline"]
            results.add("memory", case, name, "peak", "B", [net])
            results.add("memory", case, name, "process", "B", [found["peak"]])
