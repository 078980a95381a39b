"""Exact counts of every family of cases: they do not jitter, so any change is a change.

Nothing is compiled by XLA for them: plans are lowered to StableHLO, and an executable that gives
zeros stands in for the compiled one. ``bench/counts.json`` keeps them, and beside them what XLA
makes of each case (``bench/fusion.py``); ``python -m bench counts`` compares, ``--update`` writes
them again after a change that was meant.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

import samba
from bench.case import Case
from bench.errors import BadResults
from bench.fusion import KEPT, fused, on_device, problems
from bench.models import SMALL
from emulator.costs.memory import schedule_steps
from emulator.counters import Source
from emulator.plans import plan
from emulator.plans.executable_cache import Executable
from pef_schema.program import Program
from pef_schema.program_facts import lives

COUNTED = tuple(name for name in SMALL if name != "gpt2")
"""Cases that are counted; a second GPT would tell nothing new."""

FILE = Path(__file__).with_name("counts.json")
CASES, FUSED = "cases", "fused"
"""Its parts: exact counts, and what XLA makes."""

VERSIONS = ("torch", "jax")
"""Packages that the counts depend on."""

_OP = re.compile(r"(?<![#!\w])\"?(?:stablehlo|chlo)\.([a-z_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What three training steps with two learning rates amount to.

    Args:
        traces: How often the model was traced.
        compiles: Executables that were compiled.
        sections: Sections of the program.
        distinct_sections: Those of different structure.
        regions: Memory regions.
        stablehlo_ops: Operations of the full schedule as lowered, before any optimization.
        bytes_moved: Bytes that all section calls of a run read and write.
        peak_live_bytes: Most bytes of regions that hold data at one time, section by section.
    """

    traces: int
    compiles: int
    sections: int
    distinct_sections: int
    regions: int
    stablehlo_ops: int
    bytes_moved: int
    peak_live_bytes: int


@contextlib.contextmanager
def _without_xla() -> Iterator[list[str]]:
    """Replace compilation by an executable that gives zeros; yields StableHLO texts."""
    texts: list[str] = []

    def stand_in(lowered: Any, _: dict[str, Any]) -> Executable:
        texts.append(lowered.as_text())
        results = [np.zeros(o.shape, o.dtype) for o in jax.tree.leaves(lowered.out_info)]

        def call(*arrays: Any) -> tuple[Any, ...]:
            return tuple(map(jax.device_put, results))

        return Executable(compiled=_Zeros(call), source=Source.NO_CACHE, seconds=0.0)

    compiled_or_kept, direct_call = plan.compiled_or_kept, plan.direct_call
    plan.compiled_or_kept = stand_in
    plan.direct_call = operator.attrgetter("call")
    try:
        yield texts
    finally:
        plan.compiled_or_kept, plan.direct_call = compiled_or_kept, direct_call


class _Zeros:
    """What stands in for a ``jax.stages.Compiled``."""

    def __init__(self, call: Callable[..., tuple[Any, ...]]) -> None:
        self.call = call

    def memory_analysis(self) -> None:
        """Nothing is known of the memory that it would need."""


def _versions() -> dict[str, str]:
    """Versions installed, without what tells builds of one version apart."""
    return {name: version(name).partition("+")[0] for name in VERSIONS}


def count_ops(text: str) -> int:
    """Number of operations in StableHLO text.

    Example:
        >>> count_ops('''%0 = stablehlo.add %a, %b
        ... %1 = "stablehlo.gather"(%0) <{dims = #stablehlo.gather<x = 1>}>''')
        2
    """
    return len(_OP.findall(text))


def bytes_moved(program: Program) -> int:
    """Bytes that the section calls of a full run read and write."""
    return sum(
        program.regions[r].nbytes
        for step in schedule_steps(program, 0)
        for r in (*step.reads, *step.writes)
    )


def peak_live_bytes(program: Program) -> int:
    """Most bytes that hold data while the sections of a full run are called one by one."""
    known = lives(program, 0)
    return max(
        sum(program.regions[one.region].nbytes for one in known if one.first <= at <= one.last)
        for at in range(len(program.schedules[0].calls))
    )


def count(case: Case) -> Counts:
    """Count for one case, in the global session."""
    with _without_xla() as texts, on_device(case) as (convert, step):
        for number, batch in enumerate(case.batches()[:3]):
            step(convert(batch), **({"hyper": {"lr": 0.5}} if number == 1 else {}))
        program = samba.session.need_loaded("bench counts").program
        counters = samba.session.counters
        return Counts(
            traces=counters.traces,
            compiles=counters.compiles,
            sections=len(program.sections),
            distinct_sections=len({section.twin for section in program.sections}),
            regions=len(program.regions),
            stablehlo_ops=sum(map(count_ops, texts)),
            bytes_moved=bytes_moved(program),
            peak_live_bytes=peak_live_bytes(program),
        )


def differences(result: Counts, before: dict[str, int] | None) -> list[str]:
    """What differs between counts and those kept, a line each.

    Example:
        >>> counts = Counts(traces=2, compiles=1, sections=3, distinct_sections=3, regions=9,
        ...     stablehlo_ops=70, bytes_moved=8, peak_live_bytes=8)
        >>> differences(counts, {**asdict(counts), "compiles": 2})
        ['compiles: kept 2, found 1']
    """
    if before is None:
        return ["no counts are kept"]
    now = asdict(result)
    return [
        f"{key}: kept {before.get(key)}, found {now.get(key)}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]


def kept_counts(path: Path = FILE, part: str = CASES) -> dict[str, Any]:
    """A part of the file's contents, by case.

    Args:
        path: The file.
        part: ``CASES`` for the exact counts, ``FUSED`` for what XLA makes.

    Raises:
        BadResults: If it cannot be used, or is of other versions than those installed.
    """
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise BadResults(path=str(path), reason=f"cannot be read: {error}") from error
    result = parsed_counts(text, str(path))
    here = _versions()
    if result["versions"] != here:
        raise BadResults(
            path=str(path),
            reason=f"counted with {result['versions']}, installed are {here}: install what "
            "constraints.txt names, or run `python -m bench counts --update`",
        )
    return result[part]


def parsed_counts(text: str, where: str) -> dict[str, Any]:
    """What a file of counts says.

    Args:
        text: Its text.
        where: The file, and perhaps its revision, for errors.

    Raises:
        BadResults: If it is something else.
    """
    try:
        result = json.loads(text)
        result.setdefault(FUSED, {})  # earlier revisions have none
        of_xla = [*result[FUSED].values()]
        cases = [*result[CASES].values(), *of_xla]
        whole = all(isinstance(c, dict) for c in cases) and all({*c} >= KEPT for c in of_xla)
        if isinstance(result["versions"], dict) and whole:
            return result
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise BadResults(path=where, reason="no counts, expected an object of versions and cases")


def check(names: Sequence[str] = COUNTED, path: Path = FILE) -> list[str]:
    """Differences of cases from the file, a line each."""
    past = kept_counts(path)
    return [
        f"{name}: {line}"
        for name in names
        for line in differences(count(SMALL[name]), past.get(name))
    ]


def check_fused(names: Sequence[str] = COUNTED, path: Path = FILE) -> list[str]:
    """What is wrong with what XLA makes of cases, a line each; it compiles them.

    Args:
        names: The small cases.
        path: The file with what was kept.

    Raises:
        BadResults: As :func:`kept_counts`.
    """
    past = kept_counts(path, FUSED)
    return [
        f"{name}: {line}" for name in names for line in problems(fused(SMALL[name]), past.get(name))
    ]


def changes(base: dict[str, Any], head: dict[str, Any]) -> list[str]:
    """What differs between two revisions' kept counts, a line each.

    Example:
        >>> changes({"lenet": {"traces": 2}}, {"lenet": {"traces": 3}, "gpt": {"traces": 2}})
        ['lenet: traces: 2 -> 3', 'gpt: new']
    """
    lines = []
    for name in {**base, **head}:
        if name not in head or name not in base:
            lines.append(f"{name}: {'new' if name in head else 'gone'}")
            continue
        one, two = base[name], head[name]
        lines += [
            f"{name}: {key}: {one.get(key)} -> {two.get(key)}"
            for key in {**one, **two}
            if one.get(key) != two.get(key)
        ]
    return lines


def update(path: Path = FILE) -> None:
    """Write the counts of all cases."""
    result = {
        "versions": _versions(),
        CASES: {name: asdict(count(SMALL[name])) for name in COUNTED},
        FUSED: {
            name: {k: n for k, n in asdict(fused(SMALL[name])).items() if k in KEPT}
            for name in COUNTED
        },
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
