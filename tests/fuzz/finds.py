"""Finds: those of one cause together, each made as small as it goes and kept as a file."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

from tests.fuzz.pool import Result, Worker
from tests.pef_schema.fuzz.cases import Case


class Finds:
    """The finds of one target.

    Args:
        target: ``reading`` or ``run``.
        folder: Where files go.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.groups: dict[str, list[Result]] = {}

    def add(self, result: Result) -> None:
        """Note a find."""
        self.groups.setdefault(result.outcome.group, []).append(result)

    def write(self, worker: Worker) -> list[str]:
        """Write the smallest case of each group, with how to see it again.

        Args:
            worker: Tries what is left of a case.

        Returns:
            A line for each group.
        """
        lines: list[str] = []
        for group, results in sorted(self.groups.items(), key=lambda item: -len(item[1])):
            first = min(results, key=lambda r: (Case.parse(r.case).changes(), len(r.case)))
            small = minimised(first, worker)
            name = re.sub(r"\W+", "_", f"{self.target} {group}").strip("_")[:100]
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{name}.pef"
            path.write_bytes(Case.parse(small).build())
            command = f"python -m tests.fuzz {self.target} {small}"
            lines.append(f"{len(results):6d} x {group}\n         {path}: {command}")
            text = f"{command}\n{group}\n{first.outcome.place}\n{first.outcome.text}\n"
            path.with_suffix(".txt").write_text(text, encoding="utf-8")
        return lines


def minimised(found: Result, worker: Worker) -> str:
    """The same find with as few changes as it takes.

    Args:
        found: A find.
        worker: Tries what is left.

    Returns:
        Name of the case; that of ``found`` if nothing can be left out.
    """
    case = Case.parse(found.case)
    count = case.changes()
    every = [keep for size in range(count) for keep in itertools.combinations(range(count), size)]
    for keep in every[:40]:
        name = str(dataclasses.replace(case, keep=keep))
        (result,) = worker.tries([name])
        if result.outcome.find and result.outcome.group == found.outcome.group:
            return name
    return found.case
