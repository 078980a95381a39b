"""Training steps of all contenders in turns.

For each case every contender gets a process of its own. They are warmed up and
then take turns, a round of steps each, so that a machine that slows down slows
all of them. The first losses must agree, or the times would compare nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.errors import LossesDiffer, WorkerFailed
from bench.measurement import ALLOC, OURS, Results
from bench.models import ALL, SMALL, STEP_SUITES
from bench.peers import REFERENCE
from bench.process import Worker
from bench.suites import Settings, Suite, in_turns

CHECKED_LOSSES = 4

COMPILED = "compile"
"""Torch's other way to compute a step."""

SPREAD = 3.0
"""So many times as far from eager as torch's compiled steps any contender may come."""

AMPLIFIED = 2
"""Losses before which no step has amplified a difference."""

BY_HAND = "jax"
"""A contender that takes the model's mathematics by hand."""

WRITTEN = "steps"
"""The suite whose models somebody wrote by hand."""


def check_losses(case: str, losses: dict[str, list[float]], rtol: float) -> None:
    """Compare the first losses of all contenders with the reference, if that is among them.

    Steps amplify rounding: with other kernels on another processor ResNet's losses are 1e-7 apart
    at the first step, and 8e-4 at the fourth, torch's own two ways among themselves. So from the
    third loss on, as soon as torch's ways are apart, the others may be ``SPREAD`` times as far.
    The second loss shows every gradient and the first update, and there ``rtol`` holds alone.

    Args:
        case: Name of the case.
        losses: First losses by contender.
        rtol: How far apart they may be, relatively.

    Raises:
        LossesDiffer: If one is further than that from the reference.
    """
    wanted = losses.get(REFERENCE)
    if wanted is None:
        return
    torchs_other = losses.get(COMPILED, wanted)
    own = [SPREAD * abs(a - b) for a, b in zip(wanted, torchs_other, strict=True)]
    own[:AMPLIFIED] = [0.0] * AMPLIFIED
    for values in losses.values():
        rows = zip(values, wanted, own, strict=True)
        if not all(math.isclose(a, b, rel_tol=rtol, abs_tol=apart) for a, b, apart in rows):
            raise LossesDiffer(case=case, losses=losses)


def steps_of(suite: str) -> Suite:
    """The suite that times training steps of some models.

    Args:
        suite: Its name, a key of ``STEP_SUITES``.

    Returns:
        The suite. A peer that fails is left out with its reason. Results get ``step`` seconds, a
        sample a round. It raises ``WorkerFailed`` if this project's own worker fails, and
        ``LossesDiffer`` if the contenders do not compute the same.
    """

    def steps(settings: Settings, results: Results) -> None:
        names = [
            name
            for name in settings.contenders
            if suite == WRITTEN or name.removesuffix(ALLOC) != BY_HAND
        ]
        for case in settings.cases:
            if case in STEP_SUITES[suite]:
                one_case(suite, case, settings, results, names)

    return steps


def one_case(
    suite: str, case: str, settings: Settings, results: Results, contenders: list[str]
) -> None:
    """Time one case for a suite; see :func:`steps_of`."""
    settings.tell(f"{suite}: {case}")
    with contextlib.ExitStack() as stack:
        workers = {name: settings.start(case, name) for name in contenders}
        for worker in workers.values():
            stack.callback(worker.close)
        losses = first_losses_of(suite, case, settings, results, workers)
        check_losses(case, losses, (SMALL if settings.small else ALL)[case].loss_rtol)
        counts = {
            name: settings.steps_in_turn(workers[name].warm_up(settings.warm_seconds))
            for name in losses
        }

        def sampler(name: str) -> Callable[[], float]:
            return lambda: workers[name].steps(counts[name])[0] / counts[name]

        seconds = in_turns(settings.rounds, {name: sampler(name) for name in losses})
    for name, values in seconds.items():
        results.add(suite, case, name, "step", "s", values)


def first_losses_of(
    suite: str, case: str, settings: Settings, results: Results, workers: dict[str, Worker]
) -> dict[str, list[float]]:
    """First losses of all who run, in the order of ``workers``.

    They prepare beside one another, since nothing is timed yet; but a peer with our allocator
    settings after the peer as it comes, whose compiled code it finds in the cache.
    """
    losses: dict[str, list[float]] = {}
    failed: dict[str, WorkerFailed] = {}

    def prepare(names: list[str]) -> None:
        for name in names:
            try:
                losses[name] = workers[name].steps(CHECKED_LOSSES)[1]
            except WorkerFailed as error:
                failed[name] = error

    kinds: dict[str, list[str]] = {}
    for name in workers:
        kinds.setdefault(name.removesuffix(ALLOC), []).append(name)
    with ThreadPoolExecutor(settings.threads) as pool:
        list(pool.map(prepare, kinds.values()))
    if OURS in failed:
        raise failed[OURS]
    for name, error in failed.items():
        results.fail(suite, case, name, error.reason)
    return {name: losses[name] for name in workers if name in losses}
