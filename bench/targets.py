"""Goals of this project, and whether one run of the benchmark shows that they are reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from bench.environment import processor_of
from bench.measurement import FULL, OURS, Results, Spread
from bench.models import CASES, GROWTH, OVERLAP, TIMED, suite_of
from bench.ordinary import ORDINARY
from bench.peers import DDP, REPLICA
from bench.suites.alone import ALONE_CASES
from bench.suites.compile import COLD, COMPILED_CASES, WARM
from bench.suites.host import line
from bench.suites.limit import LIMIT
from bench.suites.overlap import MODES
from bench.suites.sections import SUM
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

BETTER = 1.0
"""What the step time over the better peer's stays below, for each of ``steps`` and ``unseen``."""

MEAN: Mapping[str, float] = MappingProxyType({"amd": 0.75, "intel": 0.85})
"""Largest geometric mean of those ratios, by the processor's vendor."""

ORDINARY_MOST, ORDINARY_MEAN = 0.95, 0.80
"""The same of the ordinary models: each of them, and their geometric mean."""

ORDINARY_REACH: Mapping[str, float] = MappingProxyType({"post_norm_dropout": 0.45})
"""Where more is wanted of one of them."""

JAX: Mapping[str, float] = MappingProxyType(
    {"res_ffn": 1.0, "resnet18": 1.0, "gpt": 1.0, "gpt2": 1.0, "logreg-1": 1.15}
)
"""Largest step time over a hand-written ``jax.jit``'s."""

MACHINE: Mapping[str, float] = MappingProxyType(
    {"gpt": 1.5, "res_ffn": 1.5, "resnet18": 1.7, "mlp_bf16": 3.0}
)
"""Largest step time over the machine's limit."""

HOST_AT_TEN, HOST_EACH = 25e-6, 0.5e-6
"""Seconds of host time with ten regions, and for each further region."""

COLD_REACH, WARM_REACH = 0.5, 0.25
"""Time to the first loss over ``torch.compile``'s cold one."""

GROWTH_REACH = 1.6
"""Compile time of 48 equal layers over that of 12."""

PEAK_RATIO, PEAK_EXTRA = 1.10, 16 << 20
"""Peak memory of a step: what it may be of eager's, and bytes beyond that."""

WARM_SECONDS: Mapping[str, float] = MappingProxyType({"gpt2": 6.0})
"""Seconds to the first loss with warm caches."""

NO_SLOWER = 1.03
"""Ratio up to which one thing counts as no slower than another: what is above is not noise."""

ALONE_REACH = 1.02
"""Step time of a single replica with ``data_parallel=True`` over that without."""

DDP_REACH = 1.05
"""Step time of two replicas on one machine over that of torch's DistributedDataParallel."""


def _missing(what: str, reach: str) -> Row:
    return Row(what=what, reach=reach, measured="", met=None)


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


def _better(results: Results) -> Iterable[Row]:
    found: list[float] = []
    for case in (*CASES, *UNSEEN):
        row, ratio = _beside_torch(results, case, f"< {BETTER:.2f}")
        found += [] if ratio is None else [ratio]
        yield row if ratio is None else replace(row, met=ratio < BETTER)
    of = processor_of(results)
    limit = None if of is None else MEAN.get(of.vendor)
    reach = "reported" if limit is None or of is None else f"≤ {limit:.2f} on {of.vendor}"
    yield _mean(found, len(CASES) + len(UNSEEN), "the same, geometric mean", reach, limit)


def _ordinary(results: Results) -> Iterable[Row]:
    found: list[float] = []
    for case in ORDINARY:
        limit = ORDINARY_REACH.get(case, ORDINARY_MOST)
        row, ratio = _beside_torch(results, case, f"≤ {limit:.2f}")
        found += [] if ratio is None else [ratio]
        yield row if ratio is None else replace(row, met=ratio <= limit)
    what = "the same, geometric mean of ordinary models"
    yield _mean(found, len(ORDINARY), what, f"≤ {ORDINARY_MEAN:.2f}", ORDINARY_MEAN)


def _beside_torch(results: Results, case: str, reach: str) -> tuple[Row, float | None]:
    """The row of a case, and its ratio if it was measured."""
    what = f"step time / better of eager and compile: {case}"
    ratio = over_peer(results, case, *TORCH)
    if ratio is None:
        return _missing(what, reach), None
    spread, name = ratio
    shown = f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f}; {name})"
    return Row(what=what, reach=reach, measured=shown, met=None), spread.median


def _mean(ratios: Sequence[float], models: int, what: str, reach: str, limit: float | None) -> Row:
    if not ratios:
        return _missing(what, reach)
    mean = statistics.geometric_mean(ratios)
    met = mean <= limit if limit is not None and len(ratios) == models else None
    shown = f"{mean:.3f} ({len(ratios)} of {models} models)"
    return Row(what=what, reach=reach, measured=shown, met=met)


def _by_hand(results: Results) -> Iterable[Row]:
    for case, limit in JAX.items():
        what, reach = f"step time / jax.jit by hand: {case}", f"≤ {limit:.2f}"
        ratio = over_peer(results, case, "jax")
        if ratio is None:
            yield _missing(what, reach)
            continue
        spread, name = ratio
        shown = f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f}; {name})"
        yield Row(what=what, reach=reach, measured=shown, met=spread.median <= limit)


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
        ("host time of session.run, 10 regions", f"≤ {1e6 * HOST_AT_TEN:g} µs", 0, HOST_AT_TEN),
        ("host time of each further region", f"≤ {1e6 * HOST_EACH:g} µs", 1, HOST_EACH),
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
    for case, limit in WARM_SECONDS.items():
        what, reach = f"first loss warm cache: {case}", f"< {limit:g} s"
        ours = results.get("compile", case, OURS, WARM)
        if ours is None:
            yield _missing(what, reach)
            continue
        yield Row(what=what, reach=reach, measured=f"{ours.median:.2f} s", met=ours.median < limit)
    few, many = (results.get("compile", case, OURS, COLD) for case in GROWTH)
    what, reach = "compile time, 48 equal layers / 12", f"< {GROWTH_REACH}"
    if few is None or many is None:
        yield _missing(what, reach)
        return
    ratio = many.median / few.median
    shown = f"{ratio:.3f} ({many.median:.2f} s / {few.median:.2f} s)"
    yield Row(what=what, reach=reach, measured=shown, met=ratio < GROWTH_REACH)


def _memory(results: Results) -> Iterable[Row]:
    reach = f"≤ {PEAK_RATIO:.2f} + {PEAK_EXTRA >> 20} MiB"
    for case in TIMED:
        what = f"peak memory of a step / torch eager: {case}"
        ours = results.get("memory", case, OURS, "peak")
        theirs = results.get("memory", case, "eager", "peak")
        if ours is None or theirs is None:
            yield _missing(what, reach)
            continue
        # Small models need about nothing, and their ratio says as much.
        ratio = f"{ours.median / theirs.median:.3f}, " if theirs.median > PEAK_EXTRA else ""
        shown = f"{ratio}{ours.median / 2**20:.1f} MiB / {theirs.median / 2**20:.1f} MiB"
        most = PEAK_RATIO * max(theirs.median, 0.0) + PEAK_EXTRA
        yield Row(what=what, reach=reach, measured=shown, met=ours.median <= most)


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


def _ddp(results: Results) -> Iterable[Row]:
    for case in OVERLAP:
        what = f"step time of two replicas / DistributedDataParallel's: {case}"
        spread = results.ratio("ddp", case, "step", DDP, REPLICA)
        if spread is None:
            yield _missing(what, f"≤ {DDP_REACH:.2f}")
            continue
        shown = f"{spread.median:.3f} ({spread.low:.3f} - {spread.high:.3f})"
        yield Row(
            what=what, reach=f"≤ {DDP_REACH:.2f}", measured=shown, met=spread.median <= DDP_REACH
        )


def rows(results: Results) -> list[Row]:
    """The whole table for the results of one run."""
    parts: Sequence[Callable[[], Iterable[Row]]] = (
        lambda: _better(results),
        lambda: _ordinary(results),
        lambda: _by_hand(results),
        lambda: _machine(results),
        lambda: _host(results),
        lambda: _sections(results),
        lambda: _compile(results),
        lambda: _memory(results),
        lambda: _overlap(results),
        lambda: _alone(results),
        lambda: _ddp(results),
    )
    return [row for part in parts for row in part()]
