"""The efficiency curve of a simulated run as an SVG file, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["scaling_plot"]

_WIDTH, _HEIGHT = 760.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 96.0, 16.0, 48.0
_DASHES = ("", "7 4", "2 3")
_STYLE = (
    "text{font:13px sans-serif;fill:#333}.grid{stroke:#ccc}.c0{stroke:#b3541e;fill:#b3541e}"
    ".c1{stroke:#1e6fb3;fill:#1e6fb3}.c2{stroke:#2f7d3b;fill:#2f7d3b}"
    "polyline.c0,polyline.c1,polyline.c2{fill:none;stroke-width:2}"
    "text.c0,text.c1,text.c2{stroke:none}"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}"
    ".c0{stroke:#f0a070;fill:#f0a070}.c1{stroke:#7fbdf0;fill:#7fbdf0}"
    ".c2{stroke:#86d494;fill:#86d494}}"
)
_LABEL_ROOM = 16.0
"""Pixels between two names of curves, which would else lie over one another."""


def scaling_plot(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Draw efficiency against the number of replicas, in powers of two.

    Args:
        curves: ``(replicas, efficiency)`` pairs by the curve's name, each with the same counts in
            rising order.

    Returns:
        An SVG document.

    Example:
        >>> scaling_plot({"normal": [(1, 1.0), (8, 0.5)]}).count("<circle")
        2
    """
    counts = sorted({n for curve in curves.values() for n, _ in curve})
    low, high = math.log2(counts[0]), math.log2(counts[-1])
    across = max(high - low, 1.0)

    def x(replicas: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log2(replicas) - low) / across

    def y(efficiency: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - efficiency)

    parts: list[str] = []
    for percent in range(0, 101, 20):
        place = y(percent / 100)
        parts.append(_line(_LEFT, place, _WIDTH - _RIGHT, place))
        parts.append(_text(_LEFT - 8, place + 4, f"{percent} %", anchor="end"))
    labelled = -math.inf
    for count in counts:
        parts.append(_line(x(count), _TOP, x(count), _HEIGHT - _BOTTOM))
        if x(count) - labelled > 3 * _LABEL_ROOM:
            parts.append(_text(x(count), _HEIGHT - _BOTTOM + 18, f"{count:,}", anchor="middle"))
            labelled = x(count)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - 8, "replicas", anchor="middle"))
    last = -math.inf
    for number, (name, curve) in sorted(
        enumerate(curves.items()), key=lambda entry: -entry[1][1][-1][1]
    ):
        kind = f"c{number % len(_DASHES)}"
        points = " ".join(f"{x(n):.1f},{y(e):.1f}" for n, e in curve)
        dash = _DASHES[number % len(_DASHES)]
        parts.append(f'<polyline class="{kind}" points="{points}" stroke-dasharray="{dash}"/>')
        parts += [
            f'<circle class="{kind}" cx="{x(n):.1f}" cy="{y(e):.1f}" r="3"/>' for n, e in curve
        ]
        last = max(y(curve[-1][1]) + 4, last + _LABEL_ROOM)
        parts.append(_text(_WIDTH - _RIGHT + 8, last, name, kind=kind))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="efficiency of {counts[0]:,} to {counts[-1]:,} replicas">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
