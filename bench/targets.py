"""Goals of this project, and whether one run of the benchmark shows that they are reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bench.measurement import FULL, OURS, Results
from bench.models import CASES, GROWTH, OVERLAP
from bench.peers import REPLICA
from bench.suites.alone import ALONE_CASES
from bench.suites.compile import COLD, COMPILED_CASES, WARM
from bench.suites.host import line
from bench.suites.limit import LIMIT
from bench.suites.overlap import MODES
from bench.suites.sections import SUM


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table.

    Args:
        what: The quantity and its case.
        reach: What is wanted.
        measured: What was found, empty if it was not measured.
        met: Whether that is enough; None where nothing was measured or nothing is wanted.
    """

    what: str
    reach: str
    measured: str
    met: bool | None


EAGER: Mapping[str, float] = MappingProxyType(
    {
        "gpt": 0.60,
        "gpt2": 0.60,
        "res_ffn": 0.60,
        "logreg-1": 0.70,
        "lenet-32": 0.90,
        "lenet-256": 0.90,
        "resnet18": 0.90,
        "lstm": 0.80,
        "mlp_bf16": 1.0,
    }
)
"""Largest step time over torch eager's."""

JAX: Mapping[str, float] = MappingProxyType(
    {"res_ffn": 1.03, "resnet18": 1.03, "gpt": 1.03, "gpt2": 1.03, "logreg-1": 1.3}
)
"""Largest step time over a hand-written ``jax.jit``'s."""

MACHINE: Mapping[str, float] = MappingProxyType({"gpt": 1.5, "res_ffn": 1.5})
"""Largest step time over the machine's limit."""

HOST_AT_TEN, HOST_EACH = 60e-6, 2e-6
"""Seconds of host time with ten regions, and for each further region."""

COLD_REACH, WARM_REACH = 0.5, 0.25
"""Time to the first loss over ``torch.compile``'s cold one."""

GROWTH_REACH = 1.6
"""Compile time of 48 equal layers over that of 12."""

PEAK_RESOLUTION = 2 << 20
"""Bytes by which the memory of the libraries themselves differs from run to run."""

NO_SLOWER = 1.03
"""Ratio up to which one thing counts as no slower than another: what is above is not noise."""

ALONE_REACH = 1.02
"""Step time of a single replica with ``data_parallel=True`` over that without."""


def _missing(what: str, reach: str) -> Row:
    return Row(what=what, reach=reach, measured="", met=None)


def _steps(
    results: Results, peer: str, limits: Mapping[str, float], title: str, *, strict: bool = False
) -> Iterable[Row]:
    for case, limit in limits.items():
        what, reach = f"{title}: {case}", f"{'<' if strict else '≤'} {limit:.2f}"
        name = results.best("steps", case, "step", peer)
        spread = None if name is None else results.ratio("steps", case, "step", name)
        if spread is None:
            yield _missing(what, reach)
            continue
        met = spread.median < limit if strict else spread.median <= limit
        shown = f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f}; {name})"
        yield Row(what=what, reach=reach, measured=shown, met=met)


def _machine(results: Results) -> Iterable[Row]:
    for case, limit in MACHINE.items():
        what, reach = f"step time / machine limit: {case}", f"≤ {limit:.2f}"
        ours = results.get("steps", case, OURS, "step")
        bound = results.get("limit", case, LIMIT, "step")
        if ours is None or bound is None:
            yield _missing(what, reach)
            continue
        ratio = ours.median / bound.median
        shown = f"{ratio:.3f} (bound {1e3 * bound.median:.3f} ms)"
        yield Row(what=what, reach=reach, measured=shown, met=ratio <= limit)


def _host(results: Results) -> Iterable[Row]:
    found = line(results)
    for what, reach, index, limit in (
        ("host time of session.run, 10 regions", "≤ 60 µs", 0, HOST_AT_TEN),
        ("host time of each further region", "≤ 2 µs", 1, HOST_EACH),
    ):
        if found is None:
            yield _missing(what, reach)
            continue
        shown = f"{1e6 * found[index]:.2f} µs"
        yield Row(what=what, reach=reach, measured=shown, met=found[index] <= limit)


def _sections(results: Results) -> Iterable[Row]:
    for case in CASES:
        what = f"sum of sections / full schedule: {case}"
        total = results.get("sections", case, OURS, SUM)
        full = results.get("sections", case, OURS, FULL)
        if total is None or full is None:
            yield _missing(what, "≥ 1, reported")
            continue
        ratio = total.median / full.median
        yield Row(what=what, reach="≥ 1, reported", measured=f"{ratio:.3f}", met=ratio >= 1.0)


def _compile(results: Results) -> Iterable[Row]:
    for title, what_ours, limit in (
        ("cold", COLD, COLD_REACH),
        ("warm cache", WARM, WARM_REACH),
    ):
        for case in COMPILED_CASES:
            what = f"first loss {title} / torch.compile's cold: {case}"
            ours = results.get("compile", case, OURS, what_ours)
            theirs = results.get("compile", case, "compile", COLD)
            if ours is None or theirs is None:
                yield _missing(what, f"≤ {limit:.2f}")
                continue
            ratio = ours.median / theirs.median
            shown = f"{ratio:.3f} ({ours.median:.2f} s / {theirs.median:.2f} s)"
            yield Row(what=what, reach=f"≤ {limit:.2f}", measured=shown, met=ratio <= limit)
    few, many = (results.get("compile", case, OURS, COLD) for case in GROWTH)
    what, reach = "compile time, 48 equal layers / 12", f"< {GROWTH_REACH}"
    if few is None or many is None:
        yield _missing(what, reach)
        return
    ratio = many.median / few.median
    shown = f"{ratio:.3f} ({many.median:.2f} s / {few.median:.2f} s)"
    yield Row(what=what, reach=reach, measured=shown, met=ratio < GROWTH_REACH)


def _memory(results: Results) -> Iterable[Row]:
    for case in CASES:
        what, reach = f"peak memory of a step / torch eager: {case}", "≤ 1.00"
        ours = results.get("memory", case, OURS, "peak")
        theirs = results.get("memory", case, "eager", "peak")
        if ours is None or theirs is None:
            yield _missing(what, reach)
            continue
        sizes = f"({ours.median / 2**20:.1f} MiB / {theirs.median / 2**20:.1f} MiB)"
        if min(ours.median, theirs.median) < PEAK_RESOLUTION:
            yield Row(what=what, reach=reach, measured=f"too little to tell {sizes}", met=None)
            continue
        ratio = ours.median / theirs.median
        yield Row(what=what, reach=reach, measured=f"{ratio:.3f} {sizes}", met=ratio <= 1.0)


def _overlap(results: Results) -> Iterable[Row]:
    normal, inorder, optimal = MODES
    for case in OVERLAP:
        for mode, other, limit, reach in (
            (inorder, normal, 1.0, "< 1.00"),
            (optimal, inorder, NO_SLOWER, f"≤ {NO_SLOWER:.2f}"),
        ):
            what = f"step time over a slow link, {mode} / {other}: {case}"
            spread = results.ratio("overlap", case, "step", other, mode)
            if spread is None:
                yield _missing(what, reach)
                continue
            met = spread.median < limit if reach[0] == "<" else spread.median <= limit
            shown = f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f})"
            yield Row(what=what, reach=reach, measured=shown, met=met)


def _alone(results: Results) -> Iterable[Row]:
    for case in ALONE_CASES:
        what = f"step time of one replica, data parallel / not: {case}"
        spread = results.ratio("alone", case, "step", OURS, REPLICA)
        if spread is None:
            yield _missing(what, f"< {ALONE_REACH:.2f}")
            continue
        shown = f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f})"
        met = spread.median < ALONE_REACH
        yield Row(what=what, reach=f"< {ALONE_REACH:.2f}", measured=shown, met=met)


def rows(results: Results) -> list[Row]:
    """The whole table for the results of one run."""
    every = dict.fromkeys(CASES, 1.0)
    parts: Sequence[Callable[[], Iterable[Row]]] = (
        lambda: _steps(results, "eager", EAGER, "step time / torch eager"),
        lambda: _steps(results, "compile", every, "step time / torch.compile", strict=True),
        lambda: _steps(results, "jax", JAX, "step time / jax.jit by hand"),
        lambda: _machine(results),
        lambda: _host(results),
        lambda: _sections(results),
        lambda: _compile(results),
        lambda: _memory(results),
        lambda: _overlap(results),
        lambda: _alone(results),
    )
    return [row for part in parts for row in part()]


def table(found: Sequence[Row]) -> str:
    """The table as text.

    Example:
        >>> print(table([Row(what="a", reach="< 1", measured="0.5", met=True)]))
        what  reach  measured  met
        a     < 1    0.5       yes
        1 of 1 rows met, 0 without an answer
    """
    met = {True: "yes", False: "NO", None: "-"}
    cells = [("what", "reach", "measured", "met")]
    cells += [(r.what, r.reach, r.measured or "not measured", met[r.met]) for r in found]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    missing = sum(r.met is None for r in found)
    lines.append(
        f"{sum(r.met is True for r in found)} of {len(found)} rows met, {missing} without an answer"
    )
    return "\n".join(lines)
