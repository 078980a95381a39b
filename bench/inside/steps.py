"""Training steps, and the first of them with all that comes before."""

from __future__ import annotations

import time
from typing import Any

from bench.inside import Contestant
from bench.peers import load

KEPT_LOSSES = 4


def steps(contestant: Contestant, count: int) -> dict[str, Any]:
    """Run steps.

    Args:
        contestant: Who runs.
        count: How many.

    Returns:
        ``seconds`` of all together and the first ``losses``.
    """
    step = contestant.step
    todo = contestant.batches(count)
    start = time.perf_counter()
    losses = [step(batch) for batch in todo]
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "losses": losses[:KEPT_LOSSES]}


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
