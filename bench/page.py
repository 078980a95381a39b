"""A self-contained HTML page of results: plots first; no script, no network, light and dark.

``page.html`` is its template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from bench import report
from bench.measurement import FULL, OURS, Measurement, Results, heading
from bench.models import STEP_SUITES, suite_of
from bench.peers import PEERS
from bench.report import shown
from bench.suites.limit import LIMIT
from bench.suites.sections import SUM
from bench.suites.thunks import KIND
from bench.targets import over_peer
from pef_schema.printable import printable

MOST_SECTIONS = 16
"""Bars of a case's sections; the rest is summed up in words."""

_LEFT, _WIDTH = 190, 900
"""Room for labels, and the width of a plot, in user units."""


@dataclass(slots=True, kw_only=True)
class Plot:
    """A drawing, in user units.

    Args:
        label: What it shows, for those who do not see it.
        height: Its size.
        bars: Class, left, top, length, and what shows when it is pointed at.
        lines: Class, ends across and ends down.
        texts: Place, anchor, whether it is faint, and words.
    """

    label: str
    height: float = 0.0
    bars: list[tuple[int, float, float, float, str]] = field(default_factory=list)
    lines: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    texts: list[tuple[float, float, str, bool, str]] = field(default_factory=list)


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], label: str, *, one: bool = False
) -> Plot:
    """Horizontal bars in groups.

    Args:
        rows: Label and ``(value, text)`` of each group's bars; NaN leaves a bar out.
        label: What the plot shows.
        one: Whether to draw a line at 1.
    """
    values = [v for _, group in rows for v, _ in group if v == v]
    most = max([*values, 1.0 if one else 0.0]) or 1.0
    room = _WIDTH - _LEFT - 130
    plot, y = Plot(label=label), 4.0
    for name, group in rows:
        top = y
        for index, (value, text) in enumerate(group):
            if value != value:
                continue
            length = max(1.0, room * value / most)
            plot.bars.append((index, _LEFT, y, length, f"{name}: {text}"))
            plot.texts.append((_LEFT + length + 6, y + 10, "start", True, text))
            y += 14
        plot.texts.append((_LEFT - 10, (top + y) / 2 + 3, "end", False, name[-28:]))
        y += 7
    if one:
        x = _LEFT + room / most
        plot.lines.append(("one", x, x, 0.0, y))
    plot.height = y + 2
    return plot


def _ratios(results: Results) -> Plot | None:
    rows = []
    for case in (case for suite in STEP_SUITES for case in results.cases(suite)):
        group = []
        for peer in PEERS:
            ratio = over_peer(results, case, peer)
            if ratio is None:
                group.append((float("nan"), ""))
            else:
                group.append((ratio[0].median, f"{ratio[0].median:.2f} of {ratio[1]}"))
        ours = results.get(suite_of(case), case, OURS, "step")
        bound = results.get("limit", case, LIMIT, "step")
        if ours is not None and bound is not None:
            # The bound is far below small steps; its inverse is the share of the limit reached.
            share = bound.median / ours.median
            group.append((share, f"{100 * share:.0f} % of the machine's limit"))
        rows.append((case, group))
    return bars(rows, "Step time over each peer's", one=True) if rows else None


def _time_plot(named: Sequence[tuple[str, Measurement]], label: str) -> Plot:
    return bars([(n, [(1e3 * m.median, shown(m.median, "s"))]) for n, m in named], label)


def _sections(results: Results) -> Iterator[tuple[str, Plot, str]]:
    for case in results.cases("sections"):
        measurements = list(results.select("sections", case))
        ends = [m for m in measurements if m.what in (SUM, FULL)]
        own = sorted(
            (m for m in measurements if m.what not in (SUM, FULL)), key=lambda m: -m.median
        )
        rest = own[MOST_SECTIONS:]
        more = ""
        if rest:
            more = f"{len(rest)} shorter ones take {shown(sum(m.median for m in rest), 's')}."
        named = [(m.what, m) for m in (*own[:MOST_SECTIONS], *ends)]
        yield case, _time_plot(named, f"Sections of {case}"), more


def _thunks(results: Results) -> Iterator[tuple[str, Plot, str]]:
    for case in results.cases("thunks"):
        kinds = [m for m in results.select("thunks", case) if m.what.startswith(KIND)]
        named = [(m.what.removeprefix(KIND), m) for m in kinds]
        yield case, _time_plot(named, f"Thunks of {case} by kind"), ""


def page(results: Results) -> str:
    """The whole page: plots, then the tables that they are of.

    Args:
        results: One run.

    Returns:
        HTML.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        # Nothing is on the page that a browser would not show.
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    head, *models = report.model_cells(results)
    words = {True: "yes", False: "no", None: "-"}
    goals = [
        (row.what, row.reach, row.measured or "not measured", words[row.met])
        for row in report.selected(results)
    ]
    return environment.get_template("page.html").render(
        commit=str(results.environment.get("commit", "")) or "this tree",
        heading=heading(results),
        ratios=_ratios(results),
        keys=[*(f"time / {peer}" for peer in PEERS), "limit / time"],
        by_case=[
            ("Sections", list(_sections(results))),
            ("Thunks by kind", list(_thunks(results))),
        ],
        width=_WIDTH,
        tables=[
            ("Models", head, models),
            ("Goals", ("what", "reach", "measured", "met"), goals),
        ],
        marked=("yes", "no"),
    )
