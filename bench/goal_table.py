"""The goals as tables: of one file of results, or of several side by side."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from bench.environment import described, heading
from bench.measurement import OURS, SELECTIONS, Results
from bench.models import CASES, TIMED, suite_of
from bench.ordinary import ORDINARY
from bench.peers import CONTENDERS
from bench.report import in_columns, shown
from bench.run import SUITES
from bench.suites.limit import LIMIT
from bench.targets import TORCH, Row, over_peer, rows
from bench.unseen import UNSEEN

MET: Mapping[bool | None, str] = MappingProxyType({True: "yes", False: "NO", None: "-"})


def goals(found: Sequence[Row]) -> str:
    """The goals of one file as text.

    Example:
        >>> print(goals([Row(what="a", reach="< 1", measured="0.5", met=True)]))
        what  reach  measured  met
        a     < 1    0.5       yes
        1 of 1 rows met, 0 without an answer
    """
    cells = [("what", "reach", "measured", "met")]
    cells += [(r.what, r.reach, r.measured or "not measured", MET[r.met]) for r in found]
    return "\n".join([*in_columns(cells), summary(found)])


def summary(found: Sequence[Row]) -> str:
    """How many rows are met."""
    met, missing = sum(r.met is True for r in found), sum(r.met is None for r in found)
    return f"{met} of {len(found)} rows met, {missing} without an answer"


def selected(results: Results) -> list[Row]:
    """The goals that a run was to answer.

    Args:
        results: What the run found.

    Returns:
        All of them where every suite and case ran, or where the results do not say; else those
        with an answer. What was selected and failed is among the results' failures.
    """
    said = results.settings
    parts = zip(SELECTIONS, (SUITES, TIMED, CONTENDERS), strict=True)
    whole = all(set(said.get(part, every)) >= set(every) for part, every in parts)
    return [row for row in rows(results) if whole or row.measured]


def side_by_side(
    files: Mapping[str, Results], *, only: Collection[str] | None = None
) -> list[tuple[str, ...]]:
    """The goals of several files: what each of them found by itself, no ratio across two.

    Args:
        files: Results by the name to show.
        only: Goals to show; all of them if None.

    Returns:
        Rows of cells, the names first: what, reach, and for each file what it measured and
        whether that is enough.
    """
    columns = [{row.what: row for row in rows(results)} for results in files.values()]
    titles = [cell for name in files for cell in (name, "met")]
    cells: list[tuple[str, ...]] = [("what", "reach", *titles)]
    for what in dict.fromkeys(what for column in columns for what in column):
        if only is not None and what not in only:
            continue
        of = [column[what] for column in columns if what in column]
        reach = " / ".join(dict.fromkeys(row.reach for row in of))
        found = (cell for row in of for cell in (row.measured or "not measured", MET[row.met]))
        cells.append((what, reach, *found))
    return cells


def table(files: Mapping[str, Results]) -> str:
    """What files of results say of the goals, as text, each with its processor.

    Args:
        files: Results by the name to show. Several are printed side by side, whatever processors
            they are of: each column is of one file alone.

    Returns:
        The goals that were selected when the files were made, and the failures of a part.
    """
    found = {name: selected(results) for name, results in files.items()}
    if len(files) == 1:
        [(name, results)] = files.items()
        lines = [heading(results), "", goals(found[name]), *_failed(results)]
        return "\n".join([*lines, "", models(results)])
    lines = [f"{name}: {heading(results)}" for name, results in files.items()]
    only = {row.what for of in found.values() for row in of}
    lines += ["", *in_columns(side_by_side(files, only=only))]
    for name, results in files.items():
        lines += [f"{name}: {line}" for line in (summary(found[name]), *_failed(results))]
    for name, results in files.items():
        lines += ["", f"{name}, {described(results)}", models(results)]
    return "\n".join(lines)


def _failed(results: Results) -> list[str]:
    return [f"{f.suite}  {f.case}  {f.contender}  failed: {f.reason}" for f in results.failures]


def model_cells(results: Results) -> list[tuple[str, ...]]:
    """Step times by model: ours, and over each peer's and the machine's limit.

    Returns:
        Rows of cells, the titles first; ``better`` is the better one of eager and compile.
    """
    cells = [("model", "step", *(f"/ {p}" for p in (*TORCH, "better", "jax", "limit")))]
    for case in TIMED:
        ours = results.get(suite_of(case), case, OURS, "step")
        if ours is None:
            continue
        found = [
            over_peer(results, case, *peers)
            for peers in ((TORCH[0],), (TORCH[1],), TORCH, ("jax",))
        ]
        bound = results.get("limit", case, LIMIT, "step")
        cells.append(
            (
                case,
                shown(ours.median, "s"),
                *("-" if ratio is None else f"{ratio[0].median:.3f}" for ratio in found),
                "-" if bound is None else f"{ours.median / bound.median:.2f}",
            )
        )
    for title, cases in (("geometric mean", (*CASES, *UNSEEN)), ("of ordinary models", ORDINARY)):
        ratios = [ratio[0].median for case in cases if (ratio := over_peer(results, case, *TORCH))]
        if ratios:
            mean = f"{statistics.geometric_mean(ratios):.3f}"
            cells.append((title, "", "", "", mean, "", ""))
    return cells


def models(results: Results) -> str:
    """Step times by model as text; empty where none were measured."""
    cells = model_cells(results)
    return "\n".join(in_columns(cells)) if len(cells) > 1 else ""
