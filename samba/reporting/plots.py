"""Plots, made of few shapes: the memory along the schedule, and the roofline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samba.inspection.estimate import amount_text
from samba.support.layout import bytes_text, some

WIDTH, HEIGHT = 1000.0, 260.0
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
_NAMED_CALLS = 8
"""Calls up to which there is room for the names of their sections."""
_TICKS = 160
"""Lines that there is room for."""
_WIDE_LABELS, _NARROW_LABELS = 20, 10
"""Numbers of calls that there is room for, on a wide page and on a narrow one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Memory of one role along the calls.

    Args:
        role: The role.
        most: The most bytes of it, for people.
        points: Its outline, as SVG has it.
    """

    role: str
    most: str
    points: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark:
    """A call on the axis below the memory.

    Args:
        section: Its section.
        left, width: Parts of the drawing's width, in percent.
        label: Its number; empty where there is no room for all.
        name: Its section's name on a wide page, where few are there.
        always: Whether the label stands there on a narrow page too.
        said: What it is, in words.
    """

    section: int
    left: str
    width: str
    label: str
    name: str
    always: bool
    said: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A spot at its place.

    Args:
        section, name: Those of the section.
        left, top: Parts of width and height, in percent.
        west: Whether its name is to the left.
        named: Whether its name is shown: few are there, and no other name is near.
        said: What it is, in words.
    """

    section: int
    name: str
    left: str
    top: str
    west: bool
    named: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A drawing in units of :data:`WIDTH` and :data:`HEIGHT`, and the words beside it.

    Args:
        label: What it shows, for readers that cannot see it.
        grid: Lines as ``x1, x2, y1, y2``.
        rows, columns: Labels of its axes, from the top and from the left, evenly spaced.
        axis: What its width is.
        areas: Stacked areas, from the bottom.
        roof: A line through points, as SVG has them.
        spots: Links that lie on it.
        calls: Each call along its width.
        ticks: Lines that the width has room for: one for each call, or for each of several.
    """

    label: str
    grid: Sequence[tuple[float, float, float, float]]
    rows: Sequence[str]
    columns: Sequence[str]
    axis: str = ""
    areas: Sequence[Area] = ()
    roof: str = ""
    spots: Sequence[Mark] = ()
    calls: Sequence[CallMark] = ()
    ticks: float = 0.0


def memory_plot(memory: Mapping[str, Any]) -> Plot | None:
    """Bytes at the highest moment of each call of the schedule, by role, stacked.

    Args:
        memory: That of a graph, as ``inspect --json`` describes it.

    Returns:
        The plot; None where there is nothing to show.
    """
    calls = memory["calls"]
    most = max((call["bytes"] for call in calls), default=0)
    if not most:
        return None
    by_role = [
        Counter(memory["outside"])
        + Counter(call["inside"])
        + Counter(scratch=call["scratch_bytes"])
        for call in calls
    ]
    step = WIDTH / len(calls)

    def y(size: float) -> float:
        return HEIGHT * (1 - size / most)

    known = [*ROLES, *sorted({role for sizes in by_role for role in sizes} - set(ROLES))]
    below = [0.0] * len(calls)
    areas: list[Area] = []
    for role in known:
        sizes = [entry[role] for entry in by_role]
        if not any(sizes):
            continue
        above = [b + size for b, size in zip(below, sizes, strict=True)]
        over = [(x * step, a) for i, a in enumerate(above) for x in (i, i + 1)]
        under = [(x * step, b) for i, b in enumerate(below) for x in (i, i + 1)]
        points = " ".join(f"{x:.1f},{y(size):.1f}" for x, size in (*over, *reversed(under)))
        areas.append(Area(role=role, most=bytes_text(max(sizes)), points=points))
        below = above
    marks = (most, most / 2, 0)
    return Plot(
        label=f"memory along {len(calls)} calls, {bytes_text(most)} at most",
        grid=[(0.0, WIDTH, y(size), y(size)) for size in marks],
        rows=[bytes_text(int(size)) for size in marks],
        columns=(),
        axis="calls, in the order in which they run",
        calls=_call_marks(calls),
        ticks=len(calls) / -(-len(calls) // _TICKS),
        areas=areas,
    )


def _call_marks(calls: Sequence[Mapping[str, Any]]) -> list[CallMark]:
    """Each call with its place; numbers stand below as many as there is room for."""
    count = len(calls)
    # Every label of a narrow page is one of a wide page too.
    wide = -(-count // _WIDE_LABELS)
    narrow = wide * -(-count // (wide * _NARROW_LABELS))
    marks: list[CallMark] = []
    for at, call in enumerate(calls):
        marks.append(
            CallMark(
                section=call["section"],
                left=f"{at / count:.4%}",
                width=f"{1 / count:.4%}",
                label=f"{call['call_id']}" if at % wide == 0 else "",
                name=call["name"] if count <= _NAMED_CALLS else "",
                always=at % narrow == 0,
                said=f"call {call['call_id']}, {call['name']}: {bytes_text(call['bytes'])}",
            )
        )
    return marks


def roofline_plot(spots: Sequence[Spot], *, peak: float, bandwidth: float) -> Plot | None:
    """Operations a second against operations a byte, both in powers of ten.

    Args:
        spots: The sections.
        peak: Operations a second of the machine's products.
        bandwidth: Bytes a second of its memory.

    Returns:
        The plot; None where there is nothing to show.
    """
    drawn = [s for s in spots if 0 < s.intensity < math.inf and s.rate > 0]
    if not drawn or peak <= 0 or bandwidth <= 0:
        return None
    ridge = peak / bandwidth
    low = math.floor(math.log10(min(ridge, *(s.intensity for s in drawn)) / 2))
    far = math.ceil(math.log10(max(ridge, *(s.intensity for s in drawn)) * 2))
    top = math.ceil(math.log10(peak * 1.5))
    bottom = math.floor(math.log10(min(s.rate for s in drawn) / 2))

    def x(intensity: float) -> float:
        return (math.log10(intensity) - low) / (far - low)

    def y(rate: float) -> float:
        return 1 - min(max((math.log10(rate) - bottom) / (top - bottom), 0.0), 1.0)

    across = [WIDTH * x(10.0**p) for p in range(low, far + 1)]
    down = [HEIGHT * y(10.0**p) for p in range(bottom, top + 1)]
    start = 10.0**low
    corners = ((start, start * bandwidth), (ridge, peak), (10.0**far, peak))
    return Plot(
        label=f"roofline of {some(len(drawn), 'section')}",
        grid=[(a, a, 0.0, HEIGHT) for a in across] + [(0.0, WIDTH, d, d) for d in down],
        rows=[amount_text(10.0**p, "FLOP/s") for p in range(top, bottom - 1, -1)],
        columns=[f"{10.0**p:g}" for p in range(low, far + 1)],
        axis="operations for each byte, FLOP/B",
        roof=" ".join(f"{WIDTH * x(i):.1f},{HEIGHT * y(r):.1f}" for i, r in corners),
        spots=_marks([(s, x(s.intensity), y(s.rate)) for s in drawn]),
    )


def _marks(placed: Sequence[tuple[Spot, float, float]]) -> list[Mark]:
    """Spots at their places, with names where few are there and no other name is near."""
    marks, labels = list[Mark](), list[tuple[float, float]]()
    wide, high = _NAME
    for spot, across, down in placed:
        west = across > 0.5
        # A name begins at its spot, to the left or to the right of it.
        free = [
            side
            for side in (west, not west)
            if 0 <= across - side * wide <= 1 - wide
            and all(
                abs(across - side * wide - a) >= wide or abs(down - d) >= high for a, d in labels
            )
        ]
        named = bool(free) and len(placed) <= _LABELS
        if named:
            west = free[0]
            labels.append((across - west * wide, down))
        marks.append(
            Mark(
                section=spot.section,
                name=spot.name,
                left=f"{across:.2%}",
                top=f"{down:.2%}",
                west=west,
                named=named,
                said=f"{spot.name}: {spot.intensity:.3g} FLOP/B, "
                f"{amount_text(spot.rate, 'FLOP/s')}",
            )
        )
    return marks
