"""A contender in its own process: the model, its step, and the requests that all suites share.

Suites define further requests beside the code that asks them. A process imports the modules of
the requests that it answers, so these may import no library but the one of the contender.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.case import Case
from bench.peers import Prepared, load

KEPT_LOSSES = 4


class Contestant:
    """A contender with its case, built when it is first needed.

    Args:
        case: The case.
        contender: Name of the contender.
    """

    def __init__(self, case: Case, contender: str) -> None:
        self.case, self.contender = case, contender
        self._prepared: Prepared | None = None
        self._batches: Iterator[Any] = iter(())

    def prepare(self, model: Any) -> None:
        """Build the step for a model."""
        convert, _ = self._prepared = load(self.contender, self.case)(self.case, model)
        self._batches = itertools.cycle([convert(batch) for batch in self.case.batches()])

    @property
    def step(self) -> Any:
        """The training step; builds it."""
        if self._prepared is None:
            load(self.contender, self.case)  # the allocator's settings come before the model
            self.prepare(self.case.model())
        assert self._prepared is not None
        return self._prepared[1]

    def batches(self, count: int) -> list[Any]:
        """The next so many batches, in the form that the step takes."""
        return list(itertools.islice(self._batches, count))


def seconds_of(action: Callable[[], object]) -> float:
    """Seconds that something takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


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
    losses: list[float] = []
    seconds = seconds_of(lambda: losses.extend(step(batch) for batch in todo))
    return {"seconds": seconds, "losses": losses[:KEPT_LOSSES]}
