"""Requests that the process of a contender answers, one module for each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from bench.case import Case
from bench.peers import Prepared, load

REQUESTS: Mapping[str, str] = MappingProxyType(
    {
        "steps": "bench.inside.steps",
        "first": "bench.inside.steps",
        "memory": "bench.inside.memory",
        "sections": "bench.inside.sections",
        "host": "bench.inside.host",
        "thunks": "bench.inside.thunks",
        "transfer": "bench.inside.transfer",
        "gemm": "bench.inside.limit",
        "copy": "bench.inside.limit",
        "join": "bench.inside.overlap",
        "link": "bench.inside.overlap",
        "overlap": "bench.inside.overlap",
        "overlap_state": "bench.inside.overlap",
        "join_ddp": "bench.inside.ddp",
        "ddp": "bench.inside.ddp",
    }
)
"""Modules by request; the function has the request's name."""


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
        convert, _ = self._prepared = load(self.contender, self.case).prepare(self.case, model)
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
