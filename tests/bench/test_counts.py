"""Exact counts are as kept. After a change that was meant: ``python -m bench counts --update``."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from bench import counts, models
from bench.errors import BadResults
from bench.ordinary import SMALL_ORDINARY
from bench.unseen import SMALL_UNSEEN
from pef_schema.program import (
    Call,
    DType,
    Program,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
)

FAST_UNSEEN = {"dlrm", "moe"}
SLOW = dict.fromkeys({"resnet18", *SMALL_UNSEEN, *SMALL_ORDINARY} - FAST_UNSEEN, pytest.mark.slow)
"""LeNet is counted in the fast tests too: convolutions, pooling and a loss."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW.get(name, ())) for name in counts.COUNTED]
)
def test_counts_are_as_kept(name):
    assert counts.check([name]) == []


def test_every_counted_case_is_kept():
    for part in (counts.CASES, counts.FUSED):
        assert tuple(counts.kept_counts(part=part)) == counts.COUNTED


def test_a_change_is_seen(tmp_path, monkeypatch):
    found = counts.count(models.SMALL["logreg-1"])
    monkeypatch.setattr(counts, "count", lambda case: found)
    path = tmp_path / "counts.json"
    kept = json.loads(counts.FILE.read_text())
    kept["cases"] = {"logreg-1": asdict(found) | {"stablehlo_ops": found.stablehlo_ops + 1}}
    path.write_text(json.dumps(kept))
    [line] = counts.check(["logreg-1"], path)
    assert line.startswith("logreg-1: stablehlo_ops: kept")
    assert counts.check(["lenet"], path) == ["lenet: no counts are kept"]


def test_other_versions_are_refused(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"versions": {"torch": "1.0", "jax": "0.1"}, "cases": {}}))
    with pytest.raises(BadResults, match=r"constraints\.txt"):
        counts.kept_counts(path)
    with pytest.raises(BadResults, match="cannot be read"):
        counts.kept_counts(tmp_path / "none.json")


def test_live_bytes_of_a_small_program():
    """a is alive in calls 0 and 1, b in 1 and 2: most in call 1."""

    def region(name: str, size: int, role: Role) -> Region:
        return Region(name=name, shape=(size,), dtype=DType.INT8, role=role)

    def section(name: str, reads: tuple[int, ...], writes: tuple[int, ...]) -> Section:
        step = Step(kind=SectionKind.FWD, reads=reads, writes=writes)
        return Section(name=name, steps=(step,), twin=0)

    program = Program(
        name="p",
        mapping="section",
        inference=True,
        regions=(
            region("w", 1000, Role.WEIGHT),
            region("a", 100, Role.ACTIVATION),
            region("b", 10, Role.ACTIVATION),
        ),
        symbols=(),
        graphs=(),
        optimizers=(),
        argins=(),
        sections=(
            section("one", (0,), (1,)),
            section("two", (1,), (2,)),
            section("three", (2,), ()),
        ),
        schedules=(Schedule(graph=0, calls=tuple(Call(call_id=i, section=i) for i in range(3))),),
    )
    assert counts.peak_live_bytes(program) == 1110
    assert counts.bytes_moved(program) == (1000 + 100) + (100 + 10) + 10
