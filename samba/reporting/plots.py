"""Plots as SVG, made of few elements: the memory along the schedule, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samba.inspection.estimate import amount_text
from samba.reporting.markup import element, text
from samba.support.layout import bytes_text

__all__ = ["Spot", "memory_plot", "roofline_plot"]

_WIDTH, _HEIGHT = 760.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 12.0, 14.0, 30.0
ROLES = (
    *("weight", "optimizer_state", "gradient", "activation", "input", "output", "output_gradient"),
    *("buffer", "constant", "metric", "argin", "seed"),
)
"""Roles of memory, from the bottom of the plot to its top."""


def memory_plot(graph: Mapping[str, Any]) -> str:
    """Bytes that hold something at each call of the schedule, by role, stacked.

    Args:
        graph: A graph as ``inspect --json`` describes it.
    """
    moments = [m for m in graph["memory"] if m["call_id"] is not None] or graph["memory"]
    most = max((m["bytes"] for m in moments), default=0)
    if not moments or not most:
        return ""
    step = (_WIDTH - _LEFT - _RIGHT) / len(moments)
    high = _HEIGHT - _TOP - _BOTTOM

    def y(size: float) -> float:
        return _TOP + high * (1 - size / most)

    known = [*ROLES, *sorted({r for m in moments for r in m["by_role"]} - set(ROLES))]
    below = [0.0] * len(moments)
    shapes = ""
    keys = ""
    shown = [role for role in known if any(m["by_role"].get(role) for m in moments)]
    for number, role in enumerate(shown):
        above = [b + m["by_role"].get(role, 0) for b, m in zip(below, moments, strict=True)]
        edge = [(_LEFT + i * step, _LEFT + (i + 1) * step) for i in range(len(moments))]
        over = " ".join(f"{x:.1f},{y(a):.1f}" for e, a in zip(edge, above, strict=True) for x in e)
        under = " ".join(
            f"{x:.1f},{y(b):.1f}"
            for e, b in reversed(list(zip(edge, below, strict=True)))
            for x in reversed(e)
        )
        largest = bytes_text(max(m["by_role"].get(role, 0) for m in moments))
        title = element("title", None, text(f"{role}: {largest} at most"))
        shapes += element(
            "polygon", {"class": f"c{number % 8}", "points": f"{over} {under}"}, title
        )
        mark = element("span", {"class": f"key c{number % 8}"}, "")
        keys += element("li", None, mark, text(f"{role} {largest}"))
        below = above
    grid = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">'
        f"{text(bytes_text(int(v)))}</text>"
        for v in (0, most / 2, most)
    )
    ends = (
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{text(_call(moments[0]))}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">'
        f"{text(_call(moments[-1]))}</text>"
    )
    picture = _svg(
        f"memory along {len(moments)} calls, {bytes_text(most)} at most",
        element("g", {"class": "grid"}, grid) + shapes + ends,
    )
    return picture + element("ul", {"class": "keys"}, keys)


def _call(moment: Mapping[str, Any]) -> str:
    return "at rest" if moment["call_id"] is None else f"call {moment['call_id']}"


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
        part = (math.log10(intensity) - low) / (far - low)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * part

    def y(rate: float) -> float:
        part = (math.log10(rate) - bottom) / (top - bottom)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(max(part, 0.0), 1.0)

    grid = ""
    for power in range(low, far + 1):
        place = f"{x(10.0**power):.1f}"
        grid += f'<line x1="{place}" x2="{place}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        grid += (
            f'<text x="{place}" y="{_HEIGHT - 10}" text-anchor="middle">{text(f"1e{power}")}</text>'
        )
    for power in range(bottom, top + 1):
        place = f"{y(10.0**power):.1f}"
        grid += f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{place}" y2="{place}"/>'
        label = text(amount_text(10.0**power, "FLOP/s"))
        grid += f'<text x="{_LEFT - 4}" y="{place}" text-anchor="end">{label}</text>'
    start = 10.0**low
    roof = " ".join(
        f"{x(i):.1f},{y(r):.1f}"
        for i, r in ((start, start * bandwidth), (ridge, peak), (10.0**far, peak))
    )
    points = "".join(
        element(
            "a",
            {"href": f"#section-{s.section}"},
            element(
                "circle",
                {
                    "class": f"c{s.section % 8}",
                    "cx": f"{x(s.intensity):.1f}",
                    "cy": f"{y(s.rate):.1f}",
                    "r": 5,
                },
                element(
                    "title",
                    None,
                    text(f"{s.name}: {s.intensity:.3g} FLOP/B, {amount_text(s.rate, 'FLOP/s')}"),
                ),
            ),
        )
        for s in drawn
    )
    return _svg(
        f"roofline of {len(drawn)} sections",
        element("g", {"class": "grid"}, grid)
        + f'<polyline class="roof" points="{roof}"/>'
        + points,
    )


def _svg(label: str, inside: str) -> str:
    return element(
        "svg",
        {"viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "role": "img", "aria-label": label},
        inside,
    )
