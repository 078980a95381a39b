"""Results as text, and in the form that charting tools take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.environment import described, heading, processor_of
from bench.measurement import OURS, Measurement, Results, Spread
from bench.stats import compare

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "B/s": ((1e9, "GB/s"),),
    "flop/s": ((1e9, "Gflop/s"),),
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
    lines += [f"{f.suite}  {f.case}  {f.contender}  failed: {f.reason}" for f in results.failures]
    return "\n".join(lines)


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
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


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
            found = compare(name, other.values, m.values)
            slower |= found.slower and m.contender == OURS
            lines.append(str(found))
        else:
            ratio = m.median / other.median if other.median else float("nan")
            lines.append(
                f"{name:48} {shown(other.median, m.unit)} -> {shown(m.median, m.unit)}  {ratio:.3f}"
            )
    lines += [f"{' / '.join(part for part in key if part)}: only in base" for key in known]
    return "\n".join(lines), slower
