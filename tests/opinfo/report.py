"""The page ``docs/op_coverage.md``: what is covered, in numbers and operator by operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.opinfo.catalog import DTYPES
from tests.opinfo.exceptions import (
    COMPLEX_TOLERANCES,
    OUT_OF_SCOPE,
    SAMPLES_OUT_OF_SCOPE,
    TOLERANCES,
)
from tests.opinfo.record import Outcome, Record, worst
from tests.opinfo.samples import MAX_ELEMENTS, REPEATS, cap

FORWARD_LIMIT = 97.0
GRADIENT_LIMIT = 95.0
"""Percent of the entries in scope that must pass."""

GOOD = (Outcome.PASSED, Outcome.RANDOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of how many passed."""

    passed: int
    tried: int

    @property
    def percent(self) -> float:
        """Percentage, 100 of nothing; never rounded up."""
        return 100.0 if not self.tried else int(1000 * self.passed / self.tried) / 10

    def __str__(self) -> str:
        return f"{self.passed} of {self.tried} | {self.percent:.1f} %"


def share(outcomes: Iterable[Outcome]) -> Share:
    """Outcomes in numbers; where torch has nothing to compare with does not count."""
    tried = [outcome for outcome in outcomes if outcome is not Outcome.NONE]
    return Share(passed=sum(outcome in GOOD for outcome in tried), tried=len(tried))


def by_entry(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records of each entry, entries by name, dtypes in the order of the catalogue."""
    order = list(DTYPES)
    entries: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.entry, order.index(r.dtype))):
        entries.setdefault(record.entry, []).append(record)
    return entries


def shares(records: Iterable[Record]) -> tuple[Share, Share]:
    """Entries in scope that pass forward and backward, in every dtype that was tried."""
    entries = [found for name, found in by_entry(records).items() if name not in OUT_OF_SCOPE]
    return (
        share(worst(r.forward for r in found) for found in entries),
        share(worst(r.gradient for r in found) for found in entries),
    )


def wrong(records: Iterable[Record]) -> list[str]:
    """Results that differ from torch's, and crashes."""
    return [
        f"{r.entry} {r.dtype}: {r.error or 'wrong'}: {r.reason}"
        for r in records
        if Outcome.FAILED in (r.forward, r.gradient)
    ]


def problems(records: Iterable[Record]) -> list[str]:
    """What a whole run must not have: wrong results, too little covered, needless exclusions."""
    records = list(records)
    found = wrong(records)
    found += [
        f"{r.entry} {r.dtype}: passes, but is listed as out of scope"
        for r in records
        if r.entry in OUT_OF_SCOPE and r.forward in GOOD
    ]
    limits = (("forward", FORWARD_LIMIT), ("gradient", GRADIENT_LIMIT))
    for (name, limit), part in zip(limits, shares(records), strict=True):
        if part.percent < limit:
            found.append(f"{name}: {part.percent:.1f} % of the entries pass, expected {limit:g} %")
    return found


_HEAD = """# Operator coverage

Made by `make opinfo`; do not edit. It takes every entry of the operator database that torch
{version} tests itself with (`torch.testing._internal.common_methods_invocations.op_db`) through
tracing, a program, lowering and a plan, and compares values, dtypes and shapes with torch on the
CPU; for float32 and complex numbers also all gradients.

## Totals

| | forward | | gradient | |
|---|---|---|---|---|
{totals}

Wrong results and crashes: {wrong}. What else does not pass is refused by name when it is compiled.

An entry counts once: it passes if all its samples of all dtypes do. Below that each dtype counts
by itself. Where torch has no sample that runs, no tensor as result or no gradient, nothing
counts. Of random results dtypes and shapes are compared.

Caps: {caps}
argument structures of an entry and dtype are tried, chosen to differ as much as possible, each
with up to {repeats} samples; samples with more than {elements:,} elements are left out. Tolerances
are `torch.testing.assert_close`'s for the dtype, or eager torch's own distance from float64 where
that is larger{loose}.

## Out of scope

| entries | reason |
|---|---|
{scope}

Left out of entries that count otherwise:

| entry | samples |
|---|---|
{samples}

## What does not pass

| entry | dtypes | reason |
|---|---|---|
{unsupported}

## All entries in scope

| entry | dtypes | forward | gradient | reason |
|---|---|---|---|---|
{entries}
"""


def page(records: Iterable[Record], *, version: str) -> str:
    """The whole page.

    Args:
        records: One per entry and dtype.
        version: Of torch.

    Returns:
        Markdown that depends on the arguments only.
    """
    records = list(records)
    entries = by_entry(records)
    counted = {name: found for name, found in entries.items() if name not in OUT_OF_SCOPE}
    return _HEAD.format(
        version=version,
        wrong=len(wrong(records)),
        loose="".join(_loose()),
        totals="\n".join(_totals(records, counted)),
        caps=" and ".join(_caps()),
        repeats=REPEATS,
        elements=MAX_ELEMENTS,
        scope="\n".join(_scope()),
        samples="\n".join(f"| `{n}` | {why} |" for n, (_, why) in SAMPLES_OUT_OF_SCOPE.items()),
        unsupported="\n".join(_unsupported(counted)) or "| none | | |",
        entries="\n".join(_entries(counted)),
    )


def _totals(records: list[Record], counted: Mapping[str, list[Record]]) -> Iterable[str]:
    forward, gradient = shares(records)
    yield f"| **entries in scope** | {forward} | {gradient} |"
    for dtype in DTYPES:
        of_dtype = [r for found in counted.values() for r in found if r.dtype == dtype]
        if of_dtype:
            backward = share(r.gradient for r in of_dtype)
            shown = str(backward) if backward.tried else "| "
            yield f"| {dtype} | {share(r.forward for r in of_dtype)} | {shown} |"


def _caps() -> Iterable[str]:
    caps: dict[int, list[str]] = {}
    for dtype in DTYPES:
        caps.setdefault(cap(dtype), []).append(dtype)
    return (f"{count} ({', '.join(dtypes)})" for count, dtypes in caps.items())


def _loose() -> Iterable[str]:
    """Entries with tolerances of their own."""
    for name, (_, _, reason) in (*sorted(TOLERANCES.items()), *sorted(COMPLEX_TOLERANCES.items())):
        yield f"; larger for `{name}`: {reason}"


def _scope() -> Iterable[str]:
    reasons: dict[str, list[str]] = {}
    for name, reason in OUT_OF_SCOPE.items():
        reasons.setdefault(reason, []).append(name)
    return (f"| {_listed(names)} | {reason} |" for reason, names in reasons.items())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _unsupported(counted: Mapping[str, list[Record]]) -> Iterable[str]:
    for name, found in counted.items():
        rows: dict[str, list[str]] = {}
        for r in found:
            if _reason(r):
                rows.setdefault(_reason(r), []).append(r.dtype)
        for reason, dtypes in rows.items():
            yield f"| `{name}` | {', '.join(dtypes)} | {reason} |"


def _reason(record: Record) -> str:
    """Why a record did not pass; nothing if it did."""
    if not {record.forward, record.gradient} & {Outcome.UNSUPPORTED, Outcome.FAILED}:
        return ""
    return record.reason.replace("|", "\\|")


def _entries(counted: Mapping[str, list[Record]]) -> Iterable[str]:
    for name, found in counted.items():
        rows: dict[tuple[Outcome, Outcome, str], list[str]] = {}
        backward = {r.gradient for r in found} - {Outcome.NONE}
        for r in found:
            # Gradients are tried in one dtype; the others share its row where forward agrees.
            alone = r.gradient is Outcome.NONE and len(backward) == 1
            gradient = next(iter(backward)) if alone else r.gradient
            rows.setdefault((r.forward, gradient, _reason(r)), []).append(r.dtype)
        for (forward, gradient, reason), dtypes in rows.items():
            shown = "" if gradient is Outcome.NONE else str(gradient)
            first = "nothing to compare" if forward is Outcome.NONE else str(forward)
            yield f"| `{name}` | {', '.join(dtypes)} | {first} | {shown} | {reason} |"
