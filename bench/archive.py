"""Results that are kept: in the repository a small file for each processor, and a page of all.

``python -m bench run --results`` writes the file of the processor that it runs on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.errors import BadResults
from bench.measurement import Measurement, Results, described, heading, load, processor_of
from bench.models import STEP_SUITES
from bench.report import model_cells, side_by_side, summary
from bench.suites.sections import FULL, SUM, WHOLE
from bench.suites.thunks import OP, THUNK
from bench.targets import rows

FOLDER = Path(__file__).with_name("results")
PAGE = "README.md"

IN_TURNS = frozenset({*STEP_SUITES, "overlap", "alone", "ddp"})
"""Suites whose samples belong together: a ratio's quartiles need all of them."""

DIGITS = 5
"""Significant digits that are kept: no timing is known to so many."""

LARGEST = 3
"""Single thunks of each case that are kept."""


def file_name(results: Results) -> str:
    """Name of the file for a processor.

    Raises:
        BadResults: If the results do not say what they were measured on.
    """
    of = processor_of(results)
    if of is None:
        raise BadResults(path="results", reason="they do not name their processor")
    name = f"{of.vendor}-{of.family}-{of.model}-{of.best_isa}"
    return re.sub(r"[^\w-]+", "_", name) + ".json"


def compact(results: Results) -> Results:
    """The same with what the tables need: medians, and samples where ratios are taken of them."""
    measurements: list[Measurement] = []
    thunks: dict[str, int] = {}
    for m in results.measurements:
        if m.suite == "sections" and m.what not in (SUM, FULL, WHOLE):
            continue
        if m.suite == "thunks" and m.what.startswith(OP):
            continue
        if m.suite == "thunks" and m.what.startswith(THUNK):
            thunks[m.case] = thunks.get(m.case, 0) + 1
            if thunks[m.case] > LARGEST:
                continue
        values = m.values if m.suite in IN_TURNS else (m.median,)
        measurements.append(replace(m, values=tuple(float(f"{v:.{DIGITS}g}") for v in values)))
    return replace(results, measurements=measurements)


def keep(results: Results, folder: Path = FOLDER) -> Path:
    """Write the small file of a processor, and the page of all files again.

    Args:
        results: What a run found. What it did not measure stays from runs of the same commit,
            versions and threads, so that a bench can be run in parts; else it is gone.
        folder: Where.

    Returns:
        The file.
    """
    folder.mkdir(exist_ok=True)
    path = folder / file_name(results)
    merged = compact(results)
    if path.exists():
        merged = joined(load(path), merged)
    small = merged.to_json()
    # A line for each measurement, so that a change of one is a change of one line.
    inner = {name: small.pop(name) for name in ("measurements", "failures")}
    text = json.dumps(small, indent=1)[:-2]
    for name, items in inner.items():
        text += f',\n "{name}": [' + ",".join(f"\n  {json.dumps(item)}" for item in items)
        text += "\n ]" if items else "]"
    path.write_text(text + "\n}\n")
    write_page(folder)
    return path


def joined(before: Results, now: Results) -> Results:
    """What a run found, and what an earlier one of the same code on the same machine has beside."""

    def place(results: Results) -> dict[str, object]:
        # Files that were written since, such as this one, are not changes of the code.
        return results.environment | {"commit": results.environment.get("commit", "").rstrip("+")}

    if place(before) != place(now):
        return now
    ran = {(of.suite, of.case) for of in (*now.measurements, *now.failures)}
    return replace(
        now,
        measurements=[
            *(m for m in before.measurements if (m.suite, m.case) not in ran),
            *now.measurements,
        ],
        failures=[*(f for f in before.failures if (f.suite, f.case) not in ran), *now.failures],
    )


def write_page(folder: Path = FOLDER) -> Path:
    """Write the page of a folder's files; returns where it is."""
    path = folder / PAGE
    path.write_text(page(files(folder)))
    return path


def files(folder: Path = FOLDER) -> Mapping[str, Results]:
    """The files of a folder by name without ending, in order."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def page(files: Mapping[str, Results]) -> str:
    """The page about kept results, in Markdown.

    Args:
        files: Results by name. Each is of one processor, and no ratio is across two.
    """
    lines = [
        "# Measured results",
        "",
        "One file for each processor; `python -m bench run --results` on a quiet machine writes",
        "the file of that processor and this page. Each column is of one processor alone: ratios",
        "are taken within one run, never across two. What is measured stands in",
        "[docs/performance.md](../../docs/performance.md#the-harness).",
        "",
    ]
    if not files:
        return "\n".join([*lines, "No file is kept yet.", ""])
    lines += [f"* [{name}]({name}.json): {heading(results)}" for name, results in files.items()]
    lines += ["", *_markdown(side_by_side(files)), ""]
    lines += [f"{name}: {summary(rows(results))}.  " for name, results in files.items()]
    for name, results in files.items():
        cells = model_cells(results)
        if len(cells) > 1:
            lines += ["", f"## {name}", "", f"{described(results)}. Step times and ratios:", ""]
            lines += _markdown(cells)
    return "\n".join([*lines, ""])


def _markdown(cells: list[tuple[str, ...]]) -> list[str]:
    head, *body = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells
    )
    return [head, "|" + "---|" * len(cells[0]), *body]
