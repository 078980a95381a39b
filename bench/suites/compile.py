"""From a model to the loss of its first step: cold, with a warm cache, and as layers grow."""

from __future__ import annotations

import time
from typing import Any

from bench.errors import WorkerFailed
from bench.inside import Contestant
from bench.measurement import OURS, Results
from bench.models import GROWTH
from bench.peers import load
from bench.suites import Settings

COLD, WARM = "first loss, cold", "first loss, warm cache"

COMPARED = (OURS, "compile")
"""``torch.compile`` is the peer that compiles; it keeps its own cache."""

COMPILED_CASES = ("logreg-1", "res_ffn", "lenet-32", "resnet18", "gpt", "lstm")
"""A selection: a cold ``torch.compile`` takes up to a minute each."""

OURS_ALONE = ("gpt2",)
"""Large models whose start is measured for this project alone: no peer is asked for so long."""


def compile(settings: Settings, results: Results) -> None:
    """Time the way to the first loss in a fresh process, twice with the same cache folder.

    For this project it is ``session.compile`` to a PEF, ``trace_graph`` and one step. Models are
    built and libraries imported before. The growth cases run cold only.
    """
    for case in settings.cases:
        peers = COMPARED if case in COMPILED_CASES else (OURS,)
        if case in COMPILED_CASES or (case in OURS_ALONE and not settings.quick):
            settings.tell(f"compile: {case}")
            for name in peers:
                for what in (COLD, WARM):
                    _first(settings, results, case, name, what)
    if not settings.quick:
        for case in GROWTH:
            settings.tell(f"compile: {case}")
            _first(settings, results, case, OURS, COLD)


def _first(settings: Settings, results: Results, case: str, name: str, what: str) -> None:
    try:
        with settings.worker(case, name) as worker:
            took = worker.ask(first)
    except WorkerFailed as error:
        if name == OURS:
            raise
        results.fail("compile", case, name, error.reason)
        return
    results.add("compile", case, name, what, "s", [took["prepare"] + took["first"]])
    if name == OURS:
        results.add("compile", case, name, f"{what}: compile and load", "s", [took["prepare"]])


def first(contestant: Contestant) -> dict[str, Any]:
    """Go from a built model to the loss of the first step; only as the first request.

    The contender is imported and the model has its weights before the clock starts; what a library
    imports later by itself counts.

    Returns:
        ``prepare``: seconds until a step can be called; ``first``: seconds of the first step.
    """
    load(contestant.contender, contestant.case)
    model = contestant.case.model()
    start = time.perf_counter()
    contestant.prepare(model)
    prepared = time.perf_counter()
    [batch] = contestant.batches(1)
    contestant.step(batch)
    return {"prepare": prepared - start, "first": time.perf_counter() - prepared}
