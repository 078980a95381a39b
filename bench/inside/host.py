"""Host time of ``session.run`` beside the executable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from bench.inside import Contestant
from bench.inside.sections import all_steps, device_of_session


class _Watched:
    """A plan's executable that notes how long it is called and waited for."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.seconds = 0.0

    def __call__(self, *arrays: Any) -> Any:
        start = time.perf_counter()
        results = jax.block_until_ready(self._call(*arrays))
        self.seconds += time.perf_counter() - start
        return results


def host(contestant: Contestant, count: int) -> dict[str, Any]:
    """Time steps, and within them the executable with its dispatch and its result.

    Args:
        contestant: This project.
        count: Steps, each with inputs from the host and the loss to the host.

    Returns:
        ``total`` and ``executable``: seconds of each step; ``regions``: memory regions that the
        executable takes or gives.
    """
    step = contestant.step
    for batch in contestant.batches(3):
        step(batch)
    device = device_of_session()
    plan = device.plan(all_steps(device.program))
    watched = _Watched(plan.call)
    # The plan is frozen for everyone else; what it calls is replaced while the harness watches.
    object.__setattr__(plan, "call", watched)
    total, executable = [], []
    try:
        for batch in contestant.batches(count):
            watched.seconds = 0.0
            start = time.perf_counter()
            step(batch)
            total.append(time.perf_counter() - start)
            executable.append(watched.seconds)
    finally:
        object.__setattr__(plan, "call", watched._call)
    if not all(executable):
        raise RuntimeError("session.run did not call the plan that was watched")
    regions = len(set(plan.reads) | set(plan.writes))
    return {"total": total, "executable": executable, "regions": regions}
