"""Runs that ranks with data announce to those whose data has ended.

Before each run every rank tells all others either what it is about to run, or that its data has
ended. Who has none left takes part with zeros, as torch's ``Join`` has it, and makes the same
update, so that weights and optimizer states stay the same bits everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.plans.steps import StepKey
from emulator.replicas.comm.errors import DataEnded, Disagreement
from samba.distributed.job import Job

__all__ = ["Announcement", "Ended", "Joint"]

_OPERATION = "samba.session.join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A run that a rank is about to make.

    Args:
        facts: What must be the same on all ranks that make it, by name.
        steps: ``(section, step)`` pairs.
        reduce_on_rdu: Whether gradients are reduced in device memory.
        mode: Its ``data_parallel_mode``.
        argins: Hyperparameters of its updates, by number.
    """

    facts: Mapping[str, str]
    steps: StepKey
    reduce_on_rdu: bool
    mode: str
    argins: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a rank tells whose data has ended.

    Args:
        runs: How many runs it made.
        streams: Where its random streams stand: seed and position of each.
    """

    runs: int
    streams: Sequence[Sequence[int]]


class Joint:
    """What the ranks tell each other before each run.

    Args:
        job: The ranks.
        by_initial_size: Whether a sum of gradients is divided by the number of all ranks, or of
            those that have data.
        throws: Whether it is an error that the data of some ranks ends before that of others.

    Attributes:
        shares: By how many a sum of gradients is divided in the run that was announced last.
        runs: How many runs this rank has announced.
    """

    def __init__(self, job: Job, *, by_initial_size: bool, throws: bool) -> None:
        self._job, self._by_initial_size, self._throws = job, by_initial_size, throws
        self.shares = job.size
        self.runs = 0

    def agree(self) -> None:
        """Make sure that all ranks are here, with the same arguments.

        Raises:
            DataParallelError: If they are not.
        """
        self._job.agree(
            f"{_OPERATION}()",
            {
                "divide_by_initial_world_size": str(self._by_initial_size),
                "throw_on_early_termination": str(self._throws),
            },
        )

    def announce(self, mine: Announcement) -> None:
        """Announce a run of this rank.

        Args:
            mine: The run.

        Raises:
            Disagreement: If ranks with data are about to make different runs.
            DataEnded: If some have none, and that is an error.
            DataParallelError: If a rank does not come.
        """
        self._exchange(
            {
                "facts": dict(mine.facts),
                "steps": [list(step) for step in mine.steps],
                "reduce_on_rdu": mine.reduce_on_rdu,
                "mode": mine.mode,
                "argins": {str(index): value for index, value in mine.argins.items()},
            }
        )
        self.runs += 1

    def next_run(self, streams: Sequence[Sequence[int]]) -> Announcement | Sequence[Ended]:
        """Wait for what the others do, on a rank whose data has ended.

        Args:
            streams: Where its random streams stand.

        Returns:
            The run that they are about to make; if no rank has data, what each of them told.

        Raises:
            Disagreement: As :meth:`announce`, and the others.
        """
        rows = self._exchange({"ended": self.runs, "streams": [list(row) for row in streams]})
        told = next((row for row in rows if "ended" not in row), None)
        if told is None:
            return [Ended(runs=row["ended"], streams=row["streams"]) for row in rows]
        return Announcement(
            facts=told["facts"],
            steps=tuple((section, step) for section, step in told["steps"]),
            reduce_on_rdu=told["reduce_on_rdu"],
            mode=told["mode"],
            argins={int(index): value for index, value in told["argins"].items()},
        )

    def _exchange(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        texts = self._job.gather(_OPERATION, json.dumps(mine).encode())
        rows: list[dict[str, Any]] = [json.loads(text) for text in texts]
        active = [row for row in rows if "ended" not in row]
        if not active:
            return rows
        ended = {rank: row["ended"] for rank, row in enumerate(rows) if "ended" in row}
        if ended and self._throws:
            raise DataEnded(steps=ended)
        first = active[0]["facts"]
        facts = [row.get("facts", first) for row in rows]
        if any(other != first for other in facts):
            names = dict.fromkeys(name for of_rank in facts for name in of_rank)
            columns = {name: [of_rank.get(name, "(none)") for of_rank in facts] for name in names}
            differing = {name: v for name, v in columns.items() if len(set(v)) > 1}
            raise Disagreement(when=f"a run within {_OPERATION}()", facts=differing)
        self.shares = self._job.size if self._by_initial_size else len(active)
        return rows
