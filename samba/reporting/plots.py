"""Plots as SVG, made of few elements: the memory along the schedule, and the roofline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samba.inspection.estimate import amount_text
from samba.reporting.markup import element, text
from samba.support.layout import bytes_text, some

__all__ = ["Spot", "memory_plot", "roofline_plot"]

_WIDTH, _HEIGHT = 1000.0, 260.0
"""Of the drawing in its own units, which stretch: words are beside it, and stay as they are."""
_LABELS = 8
"""Sections whose names stand beside their spots."""
_NAME = 0.2, 0.07
"""Parts of width and height that a name takes."""
ROLES = (
    *("weight", "optimizer_state", "gradient", "activation", "input", "output", "output_gradient"),
    *("buffer", "constant", "metric", "argin", "seed"),
)
"""Roles of memory, from the bottom of the plot to its top."""


def memory_plot(memory: Mapping[str, Any]) -> str:
    """Bytes at the highest moment of each call of the schedule, by role, stacked.

    Args:
        memory: That of a graph, as ``inspect --json`` describes it.
    """
    moments = [
        {
            "call_id": call["call_id"],
            "bytes": call["bytes"],
            "by_role": Counter(memory["outside"])
            + Counter(call["inside"])
            + Counter(scratch=call["scratch_bytes"]),
        }
        for call in memory["calls"]
    ]
    most = max((m["bytes"] for m in moments), default=0)
    if not moments or not most:
        return ""
    step = _WIDTH / len(moments)

    def y(size: float) -> float:
        return _HEIGHT * (1 - size / most)

    known = [*ROLES, *sorted({r for m in moments for r in m["by_role"]} - set(ROLES))]
    below = [0.0] * len(moments)
    shapes = ""
    keys = ""
    shown = [role for role in known if any(m["by_role"].get(role) for m in moments)]
    for number, role in enumerate(shown):
        above = [b + m["by_role"].get(role, 0) for b, m in zip(below, moments, strict=True)]
        edge = [(i * step, (i + 1) * step) for i in range(len(moments))]
        over = " ".join(f"{x:.1f},{y(a):.1f}" for e, a in zip(edge, above, strict=True) for x in e)
        under = " ".join(
            f"{x:.1f},{y(b):.1f}"
            for e, b in reversed(list(zip(edge, below, strict=True)))
            for x in reversed(e)
        )
        largest = bytes_text(max(m["by_role"].get(role, 0) for m in moments))
        title = element("title", None, text(f"{role}: {largest} at most"))
        shapes += element("polygon", {"class": f"c{number}", "points": f"{over} {under}"}, title)
        mark = element("span", {"class": f"key c{number}"}, "")
        keys += element("li", None, mark, text(f"{role} {largest}"))
        below = above
    marks = (most, most / 2, 0)
    grid = "".join(f'<line x1="0" x2="{_WIDTH:g}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>' for v in marks)
    picture = _plot(
        f"memory along {len(moments)} calls, {bytes_text(most)} at most",
        grid + shapes,
        rows=[bytes_text(int(v)) for v in marks],
        columns=[_call(moments[0]), _call(moments[-1])] if len(moments) > 1 else [],
        axis="" if len(moments) > 1 else _call(moments[0]),
    )
    return picture + element("ul", {"class": "keys"}, keys)


def _call(moment: Mapping[str, Any]) -> str:
    return f"call {moment['call_id']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A section in the roofline.

    Args:
        section: Its id.
        name: Its name.
        intensity: Operations of products for each byte.
        rate: Operations a second at most, or as measured.
    """

    section: int
    name: str
    intensity: float
    rate: float


def roofline_plot(spots: Sequence[Spot], *, peak: float, bandwidth: float) -> str:
    """Operations a second against operations a byte, both in powers of ten.

    Args:
        spots: The sections.
        peak: Operations a second of the machine's products.
        bandwidth: Bytes a second of its memory.
    """
    drawn = [s for s in spots if 0 < s.intensity < math.inf and s.rate > 0]
    if not drawn or peak <= 0 or bandwidth <= 0:
        return ""
    ridge = peak / bandwidth
    low = math.floor(math.log10(min(ridge, *(s.intensity for s in drawn)) / 2))
    far = math.ceil(math.log10(max(ridge, *(s.intensity for s in drawn)) * 2))
    top = math.ceil(math.log10(peak * 1.5))
    bottom = math.floor(math.log10(min(s.rate for s in drawn) / 2))

    def x(intensity: float) -> float:
        return (math.log10(intensity) - low) / (far - low)

    def y(rate: float) -> float:
        return 1 - min(max((math.log10(rate) - bottom) / (top - bottom), 0.0), 1.0)

    lines = [(_WIDTH * x(10.0**p),) * 2 + (0.0, _HEIGHT) for p in range(low, far + 1)]
    lines += [(0.0, _WIDTH) + (_HEIGHT * y(10.0**p),) * 2 for p in range(bottom, top + 1)]
    grid = "".join(
        f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{c:.1f}" y2="{d:.1f}"/>' for a, b, c, d in lines
    )
    start = 10.0**low
    corners = ((start, start * bandwidth), (ridge, peak), (10.0**far, peak))
    roof = " ".join(f"{_WIDTH * x(i):.1f},{_HEIGHT * y(r):.1f}" for i, r in corners)
    return _plot(
        f"roofline of {some(len(drawn), 'section')}",
        f'{grid}<polyline points="{roof}"/>',
        rows=[amount_text(10.0**p, "FLOP/s") for p in range(top, bottom - 1, -1)],
        columns=[f"{10.0**p:g}" for p in range(low, far + 1)],
        axis="operations for each byte, FLOP/B",
        spots=_spots([(s, x(s.intensity), y(s.rate)) for s in drawn]),
    )


def _spots(placed: Sequence[tuple[Spot, float, float]]) -> str:
    """Links at their places, with names where few are there and no other name is near."""
    made, taken = "", list[tuple[float, float]]()
    for spot, across, down in placed:
        west = across > 0.5
        # A name begins at its spot, to the left or to the right of it.
        sides = [side for side in (west, not west) if 0 <= across - side * _NAME[0] <= 1 - _NAME[0]]
        free = [
            side
            for side in sides
            if all(
                abs(across - side * _NAME[0] - a) >= _NAME[0] or abs(down - d) >= _NAME[1]
                for a, d in taken
            )
        ]
        label = ""
        if free and len(placed) <= _LABELS:
            west = free[0]
            taken.append((across - west * _NAME[0], down))
            label = element("span", None, text(spot.name))
        said = f"{spot.name}: {spot.intensity:.3g} FLOP/B, {amount_text(spot.rate, 'FLOP/s')}"
        made += element(
            "a",
            {
                "class": f"spot c{spot.section % 8}{' west' if west else ''}",
                "href": f"#section-{spot.section}",
                "style": f"left:{across:.2%};top:{down:.2%}",
                "title": said,
                "aria-label": said,
            },
            label,
        )
    return made


def _plot(
    label: str,
    inside: str,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    axis: str = "",
    spots: str = "",
) -> str:
    """A drawing that stretches, with words beside it that do not.

    Args:
        label: What it shows, for who does not see it.
        inside: SVG, in units of ``_WIDTH`` and ``_HEIGHT``.
        rows, columns: Labels of its axes, from the top and from the left, evenly spaced.
        axis: What its width is.
        spots: HTML that lies on it.
    """
    size = {"viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "preserveAspectRatio": "none"}
    drawing = element("svg", {**size, "role": "img", "aria-label": label}, inside)
    across = {"class": "xs even" if spots else "xs", "aria-hidden": "true"}
    return element(
        "div",
        {"class": "plot"},
        element("div", {"class": "ys", "aria-hidden": "true"}, *_labels(rows)),
        element("div", {"class": "area"}, drawing, spots),
        element("div", across, *_labels(columns)) if columns else "",
        element("div", {"class": "axis"}, text(axis)) if axis else "",
    )


def _labels(words: Sequence[str]) -> list[str]:
    return [element("span", None, text(word)) for word in words]
