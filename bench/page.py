"""A self-contained HTML page of results: plots first; no script, no network, light and dark."""

from __future__ import annotations

import html
from collections.abc import Sequence

from bench import report
from bench.environment import described, heading
from bench.kept import Entry
from bench.measurement import FULL, OURS, Results
from bench.models import STEP_SUITES, suite_of
from bench.peers import PEERS
from bench.report import shown
from bench.suites.limit import LIMIT
from bench.suites.sections import SUM
from bench.suites.thunks import KIND
from pef_schema.printable import printable

MOST_SECTIONS = 16
"""Bars of a case's sections; the rest is summed up in words."""

_STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1f2328; --faint: #6a7179; --rule: #d9dde2; --band: #f4f6f8;
  --good: #1a7f4b; --bad: #c0392b; --a: #3566c8; --b: #c97a12; --c: #7a4fb5; --d: #4d8a83; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171b; --ink: #e4e7eb; --faint: #98a1ab; --rule: #343a42; --band: #1c2127;
  --good: #58c48b; --bad: #ff8a7a; --a: #7ea6f4; --b: #e9ad57; --c: #b795ec; --d: #7cc3ba; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; } p { margin: .3rem 0 .8rem; color: var(--faint); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule); }
th { color: var(--faint); font-weight: 600; } .yes { color: var(--good); font-weight: 600; }
.no { color: var(--bad); font-weight: 600; } .wide { overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--ink);
  font: 12px system-ui, sans-serif; } svg .faint { fill: var(--faint); }
svg line { stroke: var(--rule); } svg .one { stroke: var(--ink); stroke-dasharray: 3 3; }
.s0 { fill: var(--a); } .s1 { fill: var(--b); } .s2 { fill: var(--c); } .s3 { fill: var(--d); }
.path { fill: none; stroke: var(--a); stroke-width: 2; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; }
.k0 { background: var(--a); } .k1 { background: var(--b); } .k2 { background: var(--c); }
.k3 { background: var(--d); }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem; }
"""

_LEFT, _WIDTH = 190, 900
"""Room for labels, and the width of a plot, in user units."""


def _escaped(text: str) -> str:
    """Text for a page, with nothing in it that a browser would not show."""
    return html.escape(printable(text))


def _text(x: float, y: float, words: str, *, anchor: str = "start", faint: bool = False) -> str:
    kind = ' class="faint"' if faint else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{_escaped(words)}</text>'


def _svg(height: float, parts: Sequence[str], label: str, *, width: float = _WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{_escaped(label)}">{"".join(parts)}</svg>'
    )


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], label: str, *, one: bool = False
) -> str:
    """Horizontal bars in groups.

    Args:
        rows: Label and ``(value, text)`` of each group's bars; NaN leaves a bar out.
        label: What the plot shows, for those who do not see it.
        one: Whether to draw a line at 1.

    Returns:
        An SVG element.
    """
    values = [v for _, group in rows for v, _ in group if v == v]
    most = max([*values, 1.0 if one else 0.0]) or 1.0
    room = _WIDTH - _LEFT - 130
    parts, y = [], 4.0
    for name, group in rows:
        top = y
        for index, (value, text) in enumerate(group):
            if value != value:
                continue
            length = max(1.0, room * value / most)
            parts.append(
                f'<rect class="s{index}" x="{_LEFT}" y="{y:.1f}" width="{length:.1f}" height="11" '
                f'rx="1.5"><title>{_escaped(f"{name}: {text}")}</title></rect>'
            )
            parts.append(_text(_LEFT + length + 6, y + 10, text, faint=True))
            y += 14
        parts.append(_text(_LEFT - 10, (top + y) / 2 + 3, name[-28:], anchor="end"))
        y += 7
    if one:
        x = _LEFT + room / most
        parts.append(f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{y:.1f}"/>')
    return _svg(y + 2, parts, label)


def curve(values: Sequence[tuple[float, str]], label: str) -> str:
    """A line through values in their order, each with a text that shows when pointed at.

    Args:
        values: ``(value, text)`` pairs, at least one.
        label: What the plot shows.

    Returns:
        An SVG element.
    """
    width, height, edge = 300.0, 110.0, 14.0
    most = max(max(v for v, _ in values), 1.0) * 1.08
    last = max(1, len(values) - 1)
    room = width - 2 * edge - 34
    points = [
        (edge + room * i / last, height - edge - (height - 2 * edge) * v / most)
        for i, (v, _) in enumerate(values)
    ]
    one = height - edge - (height - 2 * edge) / most
    right = edge + room
    parts = [
        f'<line x1="{edge}" x2="{right}" y1="{height - edge}" y2="{height - edge}"/>',
        f'<line class="one" x1="{edge}" x2="{right}" y1="{one:.1f}" y2="{one:.1f}"/>',
        f'<polyline class="path" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>',
    ]
    for (x, y), (_, text) in zip(points, values, strict=True):
        parts.append(
            f'<circle class="s0" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{_escaped(text)}</title></circle>"
        )
    parts.append(_text(points[-1][0] + 7, points[-1][1] + 4, f"{values[-1][0]:.2f}"))
    return _svg(height, parts, label, width=width)


def _goals(results: Results) -> str:
    kinds = {True: ("yes", "yes"), False: ("no", "no"), None: ("", "-")}
    lines = []
    for row in report.selected(results):
        kind, word = kinds[row.met]
        cells = (row.what, row.reach, row.measured or "not measured")
        shown_cells = "".join(f"<td>{_escaped(cell)}</td>" for cell in cells)
        lines.append(f'<tr>{shown_cells}<td class="{kind}">{word}</td></tr>')
    head = "<tr><th>what</th><th>reach</th><th>measured</th><th>met</th></tr>"
    return f'<h2>Goals</h2><div class="wide"><table>{head}{"".join(lines)}</table></div>'


def _ratios(results: Results) -> str:
    rows = []
    for case in (case for suite in STEP_SUITES for case in results.cases(suite)):
        group = []
        for peer in PEERS:
            suite = suite_of(case)
            name = results.best(suite, case, "step", peer)
            spread = None if name is None else results.ratio(suite, case, "step", name)
            group.append(
                (float("nan"), "")
                if spread is None
                else (spread.median, f"{spread.median:.2f} of {name}")
            )
        ours, bound = (
            results.get(suite_of(case), case, OURS, "step"),
            results.get("limit", case, LIMIT, "step"),
        )
        if ours is not None and bound is not None:
            # The bound is far below small steps; its inverse is the share of the limit reached.
            share = bound.median / ours.median
            group.append((share, f"{100 * share:.0f} % of the machine's limit"))
        rows.append((case, group))
    if not rows:
        return ""
    keys = "".join(
        f'<span class="key k{i}"></span>{_escaped(name)}'
        for i, name in enumerate((*(f"time / {peer}" for peer in PEERS), "limit / time"))
    )
    plot = bars(rows, "Step time over each peer's", one=True)
    return (
        "<h2>Step time against peers</h2><p>Our time divided by the better of each peer as it "
        f"comes and with our allocator settings; left of the line we are faster.</p><p>{keys}</p>"
        f"{plot}"
    )


def _sections(results: Results) -> str:
    parts = []
    for case in results.cases("sections"):
        found = list(results.select("sections", case))
        ends = {m.what: m.median for m in found if m.what in (SUM, FULL)}
        own = sorted((m for m in found if m.what not in ends), key=lambda m: -m.median)
        rows = [(m.what, [(1e3 * m.median, shown(m.median, "s"))]) for m in own[:MOST_SECTIONS]]
        rows += [(name, [(1e3 * t, shown(t, "s"))]) for name, t in ends.items()]
        more = ""
        if len(own) > MOST_SECTIONS:
            rest = sum(m.median for m in own[MOST_SECTIONS:])
            more = f"<p>{len(own) - MOST_SECTIONS} shorter ones take {shown(rest, 's')}.</p>"
        parts.append(f"<h3>{_escaped(case)}</h3>{bars(rows, f'Sections of {case}')}{more}")
    return f"<h2>Sections</h2>{''.join(parts)}" if parts else ""


def _thunks(results: Results) -> str:
    parts = []
    for case in results.cases("thunks"):
        kinds = [m for m in results.select("thunks", case) if m.what.startswith(KIND)]
        rows = [
            (m.what.removeprefix(KIND), [(1e3 * m.median, shown(m.median, "s"))]) for m in kinds
        ]
        parts.append(f"<h3>{_escaped(case)}</h3>{bars(rows, f'Thunks of {case} by kind')}")
    return f"<h2>Thunks by kind</h2>{''.join(parts)}" if parts else ""


def _models(results: Results) -> str:
    head, *cells = report.model_cells(results)
    if not cells:
        return ""

    def row(of: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_escaped(cell)}</{tag}>' for cell in of)}</tr>"

    lines = "".join(row(of, "td") for of in cells)
    return f'<h2>Models</h2><div class="wide"><table>{row(head, "th")}{lines}</table></div>'


def _history(results: Results, past: Sequence[Entry]) -> str:
    here = described(results)
    others = sum(entry.processor != here for entry in past)
    left_out = f"; {others} runs on other processors are left out" if others else ""
    past = [entry for entry in past if entry.processor == here]
    cases = list(dict.fromkeys(case for entry in past for case in entry.ratios))
    plots = []
    for case in cases:
        values = [
            (
                e.ratios[case],
                f"{e.time} {e.commit}: {e.ratios[case]:.3f}, {shown(e.seconds[case], 's')}",
            )
            for e in past
            if case in e.ratios
        ]
        plot = curve(values, f"History of {case}")
        plots.append(f"<div><h3>{_escaped(case)}</h3>{plot}</div>")
    if not plots:
        return ""
    return (
        "<h2>History</h2><p>Step time over the better eager torch, run by run; the dashed line is "
        f"1. All on {_escaped(here)}{left_out}.</p>"
        f'<div class="grid">{"".join(plots)}</div>'
    )


def page(results: Results, past: Sequence[Entry] = ()) -> str:
    """The whole page: plots, then the tables that they are of.

    Args:
        results: One run.
        past: Earlier runs and this one, oldest first.

    Returns:
        HTML.
    """
    e = results.environment
    body = "".join(
        [
            *(_ratios(results), _sections(results), _thunks(results), _history(results, past)),
            *(_models(results), _goals(results)),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>SambaFlow emulator: benchmark</title><style>{_STYLE}</style></head><body>"
        f"<h1>Benchmark of {_escaped(str(e.get('commit', '')) or 'this tree')}</h1>"
        f"<p>{_escaped(heading(results))}</p>{body}</body></html>\n"
    )
