"""Runs suites one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from bench.measurement import Results, environment
from bench.models import STEP_SUITES
from bench.suites import Settings, Suite
from bench.suites.ddp import alone, ddp
from bench.suites.host import host
from bench.suites.limit import limit
from bench.suites.memory import memory
from bench.suites.overlap import overlap
from bench.suites.sections import sections
from bench.suites.start import start
from bench.suites.steps import steps_of
from bench.suites.thunks import thunks

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        # First, so that the others find what torch.compile leaves in its cache.
        "start": start,
        "limit": limit,
        **{name: steps_of(name) for name in STEP_SUITES},
        "sections": sections,
        "thunks": thunks,
        "host": host,
        "memory": memory,
        "overlap": overlap,
        "alone": alone,
        "ddp": ddp,
    }
)
"""Suites by name, in the order they run."""


def run(names: Sequence[str], settings: Settings) -> Results:
    """Run suites.

    Args:
        names: Which ones.
        settings: How much is measured.

    Returns:
        All that was found.

    Raises:
        WorkerFailed: If this project's own worker fails.
        LossesDiffer: If the contenders do not compute the same.
    """
    results = Results(
        environment=environment(settings.threads),
        settings={
            "suites": list(names),
            "cases": list(settings.cases),
            "contenders": list(settings.contenders),
            "rounds": settings.rounds,
            "round_seconds": settings.round_seconds,
            "warm_seconds": settings.warm_seconds,
        },
    )
    took = results.settings["suite_seconds"] = {}
    for name, suite in SUITES.items():
        if name in names:
            start = time.perf_counter()
            suite(settings, results)
            took[name] = round(time.perf_counter() - start, 1)
    return results
