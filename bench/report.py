"""Results and goals as text, and in the form that charting tools take."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bench.measurement import (
    OURS,
    SELECTIONS,
    Measurement,
    Results,
    Spread,
    described,
    heading,
    processor_of,
)
from bench.models import CASES, TIMED, suite_of
from bench.names import SUITES
from bench.ordinary import ORDINARY
from bench.peers import CONTENDERS
from bench.stats import compare
from bench.suites.limit import LIMIT
from bench.targets import TORCH, Row, over_peer, rows
from bench.unseen import UNSEEN
from samba.support import layout

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "B/s": ((1e9, "GB/s"),),
    "flop/s": ((1e9, "Gflop/s"),),
    "plans": ((1.0, "plans"),),
    "flop": ((1e9, "Gflop"), (1e6, "Mflop"), (1.0, "flop")),
}


def shown(value: float, unit: str) -> str:
    """A number with its unit, in a size that reads well.

    Example:
        >>> shown(0.0123, "s"), shown(3 << 20, "B")
        ('12.300 ms', '3.000 MiB')
    """
    scales = _SCALES[unit]
    for scale, name in scales:
        if abs(value) >= scale or (scale, name) == scales[-1]:
            return f"{value / scale:.3f} {name}"
    raise AssertionError  # the last scale always returns


def table(results: Results) -> str:
    """A table for people.

    Example:
        >>> found = Results()
        >>> found.add("steps", "lenet", "ours", "step", "s", [0.001, 0.001])
        >>> found.add("steps", "lenet", "eager", "step", "s", [0.002, 0.002])
        >>> print(table(found))
        processor: a processor that is not named
        suite  case   contender  what  median    quartiles            ours/this
        steps  lenet  ours       step  1.000 ms  1.000 ms - 1.000 ms
        steps  lenet  eager      step  2.000 ms  2.000 ms - 2.000 ms  0.500
    """
    head = ("suite", "case", "contender", "what", "median", "quartiles", "ours/this", "note")
    cells = [head, *(_cells(results, m) for m in results.measurements)]
    if not any(m.note for m in results.measurements):
        cells = [row[:-1] for row in cells]
    lines = [heading(results), *in_columns(cells)]
    return "\n".join([*lines, *_failed(results)])


def _cells(results: Results, m: Measurement) -> tuple[str, ...]:
    spread = Spread.of(m.values)
    quartiles = ""
    if len(m.values) > 1:
        quartiles = f"{shown(spread.low, m.unit)} - {shown(spread.high, m.unit)}"
    ratio = None
    if m.contender != OURS:
        ratio = results.ratio(m.suite, m.case, m.what, m.contender)
    return (
        m.suite,
        m.case,
        m.contender,
        m.what,
        shown(spread.median, m.unit),
        quartiles,
        "" if ratio is None else f"{ratio.median:.3f}",
        m.note,
    )


def in_columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell.

    Example:
        >>> in_columns([("a", "b"), ("long", "c")])
        ['a     b', 'long  c']
    """
    head, *rows = cells
    return layout.table(head, rows, width=sys.maxsize).splitlines()


_EXPORTED = {"s": ("ms", 1e3), "B": ("MiB", 2.0**-20)}


def smaller_is_better(results: Results) -> list[dict[str, Any]]:
    """Times and sizes as the ``customSmallerIsBetter`` array of github-action-benchmark.

    Example:
        >>> found = Results(environment={"commit": "abc"})
        >>> found.add("steps", "lenet", "ours", "step", "s", [0.001, 0.002, 0.003])
        >>> smaller_is_better(found)[0]["name"], smaller_is_better(found)[0]["value"]
        ('steps / lenet / ours / step', 2.0)
    """
    entries = []
    for m in results.measurements:
        if m.unit in _EXPORTED:
            unit, scale = _EXPORTED[m.unit]
            spread = Spread.of(m.values)
            entries.append(
                {
                    "name": " / ".join(part for part in m.key if part),
                    "unit": unit,
                    "value": scale * spread.median,
                    "range": f"± {scale * (spread.high - spread.low) / 2:.3g}",
                    "extra": f"{len(m.values)} samples; {described(results)}",
                }
            )
    return entries


def comparison(base: Results, head: Results) -> tuple[str, bool]:
    """Compare two sets of results.

    Args:
        base, head: What to compare; both hold all samples. ``check_one_processor`` looks whether
            that makes sense; where they are of two processors, the table says so.

    Returns:
        A table, and whether anything of ours counts as slower: nothing does across processors.
        Timings from different jobs say little: ``bench gate`` is the judge.
    """
    lines, slower = [f"base: {heading(base)}", f"head: {heading(head)}"], False
    across = processor_of(base) != processor_of(head)
    if across:
        lines.append(
            "ACROSS PROCESSORS: ratios compare machines, not code; nothing is called slower"
        )
    for key in ("threads", "versions"):
        ours, theirs = head.environment.get(key), base.environment.get(key)
        if ours != theirs:
            lines.append(f"note: {key} differs: base {theirs}, head {ours}")
    known = {m.key: m for m in base.measurements}
    for m in head.measurements:
        other = known.pop(m.key, None)
        name = " / ".join(part for part in m.key if part)
        if other is None:
            lines.append(f"{name}: only in head")
        elif m.unit == "s" and min(len(m.values), len(other.values)) > 1 and not across:
            result = compare(name, other.values, m.values)
            slower |= result.slower and m.contender == OURS
            lines.append(str(result))
        else:
            ratio = m.median / other.median if other.median else float("nan")
            lines.append(
                f"{name:48} {shown(other.median, m.unit)} -> {shown(m.median, m.unit)}  {ratio:.3f}"
            )
    lines += [f"{' / '.join(part for part in key if part)}: only in base" for key in known]
    return "\n".join(lines), slower


MET: Mapping[bool | None, str] = MappingProxyType({True: "yes", False: "NO", None: "-"})


def goals(answers: Sequence[Row]) -> str:
    """The goals of one file as text.

    Example:
        >>> print(goals([Row(what="a", reach="< 1", measured="0.5", met=True)]))
        what  reach  measured  met
        a     < 1    0.5       yes
        1 of 1 rows met, 0 without an answer
    """
    cells = [("what", "reach", "measured", "met")]
    cells += [(r.what, r.reach, r.measured or "not measured", MET[r.met]) for r in answers]
    return "\n".join([*in_columns(cells), summary(answers)])


def summary(answers: Sequence[Row]) -> str:
    """How many rows are met."""
    met, missing = sum(r.met is True for r in answers), sum(r.met is None for r in answers)
    return f"{met} of {len(answers)} rows met, {missing} without an answer"


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
    for what in columns[0]:
        if only is not None and what not in only:
            continue
        of = [column[what] for column in columns]
        answers = (cell for row in of for cell in (row.measured or "not measured", MET[row.met]))
        cells.append((what, of[0].reach, *answers))
    return cells


def goal_table(files: Mapping[str, Results]) -> str:
    """What files of results say of the goals, as text, each with its processor.

    Args:
        files: Results by the name to show. Several are printed side by side, whatever processors
            they are of: each column is of one file alone.

    Returns:
        The goals that were selected when the files were made, and the failures of a part.
    """
    goals_of = {name: selected(results) for name, results in files.items()}
    if len(files) == 1:
        [(name, results)] = files.items()
        lines = [heading(results), "", goals(goals_of[name]), *_failed(results)]
        return "\n".join([*lines, "", models(results)])
    lines = [f"{name}: {heading(results)}" for name, results in files.items()]
    only = {row.what for of in goals_of.values() for row in of}
    lines += ["", *in_columns(side_by_side(files, only=only))]
    for name, results in files.items():
        lines += [f"{name}: {line}" for line in (summary(goals_of[name]), *_failed(results))]
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
        ratios_here = [
            over_peer(results, case, *peers)
            for peers in ((TORCH[0],), (TORCH[1],), TORCH, ("jax",))
        ]
        bound = results.get("limit", case, LIMIT, "step")
        cells.append(
            (
                case,
                shown(ours.median, "s"),
                *("-" if ratio is None else f"{ratio[0].median:.3f}" for ratio in ratios_here),
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
