"""Peak memory of a step in a fresh process; ``bench.inside.memory`` says how."""

from __future__ import annotations

from bench.errors import WorkerFailed
from bench.measurement import ALLOC, OURS, Results
from bench.peers import REFERENCE
from bench.suites import Settings
from bench.unseen import UNSEEN


def memory(settings: Settings, results: Results) -> None:
    """Measure the peak of a step for every contender as it comes.

    Adds ``peak``, what the model needs beyond the started libraries, and ``process``, everything.
    """
    for case in settings.cases:
        settings.tell(f"memory: {case}")
        for name in settings.contenders:
            # Of models that nobody wrote by hand, the goal's two sides are enough.
            if name.endswith(ALLOC) or (case in UNSEEN and name not in (OURS, REFERENCE)):
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
