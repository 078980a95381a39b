"""The coverage page and the verdict on a run, from records that are kept."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch._export.utils
import torch.export.exported_program
from torch._ops import OperatorBase

from tests.opinfo.catalog import load_entries
from tests.opinfo.exceptions import OUT_OF_SCOPE, SAMPLES_OUT_OF_SCOPE
from tests.opinfo.record import Outcome, Record, read_records
from tests.opinfo.report import GOOD, by_entry, page, problems, shares
from tests.opinfo.runner import Job, run_jobs

DATA = Path(__file__).parent / "data"
RECORDS = list(read_records(DATA / "records.jsonl").values())


def test_the_page() -> None:
    assert page(RECORDS, version="2.13.0") == (DATA / "page.md").read_text()
    assert page(reversed(RECORDS), version="2.13.0") == page(RECORDS, version="2.13.0")


def test_how_entries_count() -> None:
    forward, gradient = shares(RECORDS)
    # linalg.eig is out of scope, item gives no tensor; hash_tensor fails in one of two dtypes.
    assert list(by_entry(RECORDS)) == sorted({r.entry for r in RECORDS})
    assert (forward.passed, forward.tried) == (3, 5)
    assert (gradient.passed, gradient.tried) == (1, 2)


def records(passed: int, unsupported: int) -> list[Record]:
    good = Record(
        entry="", dtype="float32", forward=Outcome.PASSED, gradient=Outcome.PASSED, samples=1
    )
    bad = replace(good, forward=Outcome.UNSUPPORTED, gradient=Outcome.UNSUPPORTED)
    rows = [good] * passed + [bad] * unsupported
    return [replace(row, entry=f"op{i}") for i, row in enumerate(rows)]


def test_limits() -> None:
    assert problems(records(97, 3)) == []
    assert problems(records(969, 31)) == ["forward: 96.9 % of the entries pass, expected 97 %"]
    assert len(problems(records(94, 6))) == 2


def test_one_wrong_result_is_a_problem() -> None:
    rows = records(100, 0)
    rows[7] = replace(rows[7], gradient=Outcome.FAILED, reason="gradient 0: off")
    assert problems(rows) == ["op7 float32: wrong: gradient 0: off"]


def test_an_exclusion_without_need_is_a_problem() -> None:
    row = replace(records(1, 0)[0], entry="linalg.eig")
    assert problems([*records(9, 0), row]) == [
        "linalg.eig float32: passes, but is listed as out of scope"
    ]


def test_only_the_fast_tests_run_through_patched_torch():
    listing = torch.export.exported_program._collect_all_valid_cia_ops  # pyright: ignore[reportPrivateImportUsage]  # what is replaced
    patched = [
        OperatorBase.py_impl.__module__ != "torch._ops",
        listing is not torch._export.utils._collect_all_valid_cia_ops,
    ]
    assert patched == [bool(os.environ["XLA_FLAGS"])] * 2


EVERY = 250
PAGE = Path(__file__).parents[2] / "docs" / "op_coverage.md"


@pytest.mark.slow
def test_every_250th_entry(tmp_path: Path) -> None:
    entries = [e for e in load_entries() if e.name not in OUT_OF_SCOPE and e.dtypes][36::EVERY]
    jobs = [
        Job(entry=entry.name, dtype=entry.dtypes[i % len(entry.dtypes)], count=1)
        for i, entry in enumerate(entries)
    ]
    assert len(jobs) >= 2
    records = run_jobs(jobs, tmp_path / "results.jsonl", workers=1)
    assert [(r.entry, r.dtype) for r in records] == [(job.entry, job.dtype) for job in jobs]
    wrong = [r for r in records if Outcome.FAILED in (r.forward, r.gradient)]
    assert not wrong
    assert sum(r.forward in GOOD and r.samples > 0 for r in records) > 0.9 * len(records)
    assert any(r.gradient is Outcome.PASSED for r in records)


def test_the_page_knows_every_entry() -> None:
    rows = {m[1] for m in re.finditer(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)}
    known = {entry.name for entry in load_entries() if entry.dtypes}
    assert known - rows <= set(OUT_OF_SCOPE)
    assert set(OUT_OF_SCOPE) <= {entry.name for entry in load_entries()}
    assert set(SAMPLES_OUT_OF_SCOPE) <= known
    assert "Wrong results and crashes: 0." in PAGE.read_text()
