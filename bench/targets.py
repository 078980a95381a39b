"""Goals of this project, and whether one run of the benchmark shows that they are reached."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bench.measurement import FULL, OURS, Measurement, Results, Spread
from bench.models import CASES, DEEP, OVERLAP, TIMED, suite_of
from bench.ordinary import ORDINARY
from bench.peers import DDP, REFERENCE, REPLICA
from bench.suites.ddp import ALONE_CASES, MODES
from bench.suites.host import line
from bench.suites.limit import LIMIT
from bench.suites.memory import LATER_PLANS
from bench.suites.sections import SUM, WHOLE
from bench.suites.start import COLD, COMPILE, COMPILED, EXPORT, FIRST, HELP, SECOND, STARTED, WARM
from bench.unseen import UNSEEN


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


TORCH = ("eager", "compile")
"""Peers of which the better one counts, each as it comes and with our allocator settings."""

BETTER, MEAN = 0.95, 0.70
"""Largest step time over the better peer's for each of ``steps`` and ``unseen``, and the largest
geometric mean of these ratios."""

ORDINARY_MOST, ORDINARY_MEAN = 0.95, 0.80
"""The same of the ordinary models: each of them, and their geometric mean."""

ORDINARY_REACH: Mapping[str, float] = MappingProxyType({"post_norm_dropout": 0.45})
"""Where more is wanted of one of them."""

JAX: Mapping[str, float] = MappingProxyType(
    {"res_ffn": 1.0, "resnet18": 1.0, "gpt": 1.0, "gpt2": 1.0, "logreg-1": 1.15}
)
"""Largest step time over a hand-written ``jax.jit``'s."""

MACHINE: Mapping[str, float] = MappingProxyType(
    {"gpt": 1.5, "res_ffn": 1.5, "resnet18": 1.5, "mlp_bf16": 2.0}
)
"""Largest step time over the machine's limit."""

HOST_AT_TEN, HOST_EACH = 25e-6, 0.5e-6
"""Seconds of host time with ten regions, and for each further region."""

SECOND_REACH = 1.5
"""Processor seconds of a second ``run`` to its first loss over torch eager's."""

FIRST_REACH = 0.20
"""Processor seconds of the first ``run`` to its first loss over ``torch.compile``'s cold ones."""

FIRST_REACHES: Mapping[str, float] = MappingProxyType({"lstm": 1.0})
"""Where less is wanted of one case."""

COMPILE_REACH = 1.3
"""Processor seconds of ``compile`` over those of ``torch.export`` in a process of its own."""

GROWTHS: Mapping[tuple[str, str], float] = MappingProxyType(
    {("layers-48", "layers-12"): 1.3, ("steps-200", "steps-50"): 1.5}
)
"""The first run of four times as many equal parts over that of the fewer."""

PEAK_RATIO, PEAK_EXTRA = 1.10, 16 << 20
"""Peak memory of a step: what it may be of eager's, and bytes beyond that."""

WALL_SECONDS: Mapping[tuple[str, str], float] = MappingProxyType(
    {("gpt2", COLD): 15.0, ("gpt2", WARM): 4.0, ("qwen3_next", COLD): 60.0}
)
"""Seconds to the first loss of large models."""

HELP_SECONDS = 0.4
"""Seconds until a command has printed its help text."""

NO_SLOWER = 1.03
"""Ratio up to which one thing counts as no slower than another: what is above is not noise."""

ALONE_REACH = 1.02
"""Step time of a single replica with ``data_parallel=True`` over that without."""

DDP_REACH = 1.05
"""Step time of two replicas on one machine over that of torch's DistributedDataParallel."""


_HOLDS = MappingProxyType({"<": operator.lt, "≤": operator.le, "≥": operator.ge})

_Value = tuple[float, str] | None
"""A value and how it is shown; None where nothing was measured."""


def _row(what: str, sign: str, limit: float, measured: _Value, reach: str = "") -> Row:
    """A row that is met where the sign holds between the value and the limit."""
    value, shown = measured or (0.0, "")
    met = _HOLDS[sign](value, limit) if measured else None
    return Row(what=what, reach=reach or f"{sign} {limit:.2f}", measured=shown, met=met)


def _of_spread(spread: Spread | None, whose: str = "") -> _Value:
    if spread is None:
        return None
    whose = whose and f"; {whose}"
    return spread.median, f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f}{whose})"


def _over(ours: Measurement | None, other: Measurement | None, more: str = "") -> _Value:
    """The ratio of two medians; ``more`` is shown beside it, with both filled in."""
    if ours is None or other is None:
        return None
    ratio = ours.median / other.median
    return ratio, f"{ratio:.3f}" + more.format(ours.median, other.median)


def over_peer(results: Results, case: str, *peers: str) -> tuple[Spread, str] | None:
    """Step time of a case over that of the best of some peers.

    Args:
        results: What was measured.
        case: Name of the case.
        peers: Names; each stands for itself and for itself with our allocator settings.

    Returns:
        The ratio and whose it is; None where something is missing.
    """
    suite = suite_of(case)
    name = results.best(suite, case, "step", *peers)
    spread = None if name is None else results.ratio(suite, case, "step", name)
    return None if spread is None or name is None else (spread, name)


def _over_peer(results: Results, case: str, *peers: str) -> _Value:
    ratio = over_peer(results, case, *peers)
    return None if ratio is None else _of_spread(*ratio)


def _beside_torch(results: Results) -> Iterable[Row]:
    for cases, most, mean, title in (
        ((*CASES, *UNSEEN), BETTER, MEAN, ""),
        (ORDINARY, ORDINARY_MOST, ORDINARY_MEAN, " of ordinary models"),
    ):
        ratios: list[float] = []
        for case in cases:
            measured = _over_peer(results, case, *TORCH)
            ratios += [measured[0]] if measured else []
            limit = ORDINARY_REACH.get(case, most)
            yield _row(f"step time / better of eager and compile: {case}", "≤", limit, measured)
        yield _mean(f"the same, geometric mean{title}", ratios, len(cases), mean)


def _mean(what: str, ratios: Sequence[float], models: int, limit: float) -> Row:
    reach = f"≤ {limit:.2f}"
    if not ratios:
        return Row(what=what, reach=reach, measured="", met=None)
    mean = statistics.geometric_mean(ratios)
    shown = f"{mean:.3f} ({len(ratios)} of {models} models)"
    met = mean <= limit if len(ratios) == models else None
    return Row(what=what, reach=reach, measured=shown, met=met)


def _steps(results: Results) -> Iterable[Row]:
    for case, limit in JAX.items():
        what = f"step time / jax.jit by hand: {case}"
        yield _row(what, "≤", limit, _over_peer(results, case, "jax"))
    for case, limit in MACHINE.items():
        ours = results.get("steps", case, OURS, "step")
        bound = results.get("limit", case, LIMIT, "step")
        more = "" if bound is None else f" (bound {1e3 * bound.median:.3f} ms)"
        yield _row(f"step time / machine limit: {case}", "≤", limit, _over(ours, bound, more))


def _host(results: Results) -> Iterable[Row]:
    for what, measured, limit in zip(
        ("host time of session.run, 10 regions", "host time of each further region"),
        line(results) or (None, None),
        (HOST_AT_TEN, HOST_EACH),
        strict=True,
    ):
        shown = None if measured is None else (measured, f"{1e6 * measured:.2f} µs")
        yield _row(what, "≤", limit, shown, f"≤ {1e6 * limit:g} µs")


def _sections(results: Results) -> Iterable[Row]:
    for case in CASES:
        total, full = (results.get("sections", case, OURS, what) for what in (SUM, FULL))
        what = f"sum of sections / full schedule: {case}"
        yield _row(what, "≥", 1.0, _over(total, full), "≥ 1, reported")
    parts, whole = (results.get("sections", DEEP, OURS, what) for what in (FULL, WHOLE))
    measured = _over(parts, whole, " ({:.4f} s / {:.4f} s)")
    yield _row(f"step in parts / as one executable: {DEEP}", "≤", NO_SLOWER, measured)


def _start(results: Results) -> Iterable[Row]:
    both = " ({:.2f} s / {:.2f} s)"

    def of(case: str, who: str, what: str) -> Measurement | None:
        return results.get("start", case, who, what)

    for case in STARTED:
        ours, theirs = of(case, OURS, SECOND), of(case, REFERENCE, FIRST)
        what = f"second run to its first loss / torch eager: {case}"
        yield _row(what, "≤", SECOND_REACH, _over(ours, theirs, both), f"≤ {SECOND_REACH}")
    for case in STARTED:
        limit = FIRST_REACHES.get(case, FIRST_REACH)
        ours, theirs = of(case, OURS, FIRST), of(case, COMPILED, FIRST)
        what = f"first run to its first loss / torch.compile's: {case}"
        yield _row(what, "≤", limit, _over(ours, theirs, both), f"≤ {limit}")
    for case in STARTED:
        ours, theirs = of(case, OURS, COMPILE), of(case, REFERENCE, EXPORT)
        what = f"compile / torch.export: {case}"
        yield _row(what, "≤", COMPILE_REACH, _over(ours, theirs, both), f"≤ {COMPILE_REACH}")
    for (case, quantity), limit in WALL_SECONDS.items():
        ours = of(case, OURS, quantity)
        measured = None if ours is None else (ours.median, f"{ours.median:.2f} s")
        yield _row(f"{quantity}: {case}", "≤", limit, measured, f"≤ {limit:g} s")
    for (many, few), limit in GROWTHS.items():
        measured = _over(of(many, OURS, FIRST), of(few, OURS, FIRST), both)
        yield _row(f"first run, {many} / {few}", "≤", limit, measured, f"≤ {limit}")
    for name in HELP:
        took = of(name, OURS, "help")
        measured = None if took is None else (min(took.values), f"{min(took.values):.2f} s")
        yield _row(f"help text: {name}", "≤", HELP_SECONDS, measured, f"≤ {HELP_SECONDS} s")


def _memory(results: Results) -> Iterable[Row]:
    for case in TIMED:
        what = f"peak memory of a step / torch eager: {case}"
        reach = f"≤ {PEAK_RATIO:.2f} + {PEAK_EXTRA >> 20} MiB"
        ours, theirs = (results.get("memory", case, who, "peak") for who in (OURS, "eager"))
        if ours is None or theirs is None:
            yield _row(what, "≤", 0.0, None, reach)
            continue
        # Small models need about nothing, and their ratio says as much.
        ratio = f"{ours.median / theirs.median:.3f}, " if theirs.median > PEAK_EXTRA else ""
        shown = f"{ratio}{ours.median / 2**20:.1f} MiB / {theirs.median / 2**20:.1f} MiB"
        most = PEAK_RATIO * max(theirs.median, 0.0) + PEAK_EXTRA
        yield _row(what, "≤", most, (ours.median, shown), reach)
    later = [m for case in TIMED if (m := results.get("memory", case, OURS, LATER_PLANS))]
    plans = sum(m.median for m in later)
    shown = (plans, f"{plans:.0f} ({len(later)} models)") if later else None
    yield _row(LATER_PLANS, "≤", 0.0, shown, "0")


def _parallel(results: Results) -> Iterable[Row]:
    normal, inorder, optimal = MODES
    for case in OVERLAP:
        for mode, other, sign, limit in (
            (inorder, normal, "<", 1.0),
            (optimal, inorder, "≤", NO_SLOWER),
        ):
            what = f"step time over a slow link, {mode} / {other}: {case}"
            measured = _of_spread(results.ratio("overlap", case, "step", other, mode))
            yield _row(what, sign, limit, measured)
    for case in ALONE_CASES:
        what = f"step time of one replica, data parallel / not: {case}"
        measured = _of_spread(results.ratio("alone", case, "step", OURS, REPLICA))
        yield _row(what, "<", ALONE_REACH, measured)
    for case in OVERLAP:
        what = f"step time of two replicas / DistributedDataParallel's: {case}"
        measured = _of_spread(results.ratio("ddp", case, "step", DDP, REPLICA))
        yield _row(what, "≤", DDP_REACH, measured)


def rows(results: Results) -> list[Row]:
    """The whole table for the results of one run."""
    parts = (_beside_torch, _steps, _host, _sections, _start, _memory, _parallel)
    return [row for part in parts for row in part(results)]
