"""A few entries through the whole way, and whether the coverage page knows all of them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.opinfo.catalog import load_entries
from tests.opinfo.record import Outcome
from tests.opinfo.report import GOOD
from tests.opinfo.runner import Job, run_jobs
from tests.opinfo.scope import OUT_OF_SCOPE, SAMPLES_OUT_OF_SCOPE

EVERY = 70
PAGE = Path(__file__).parents[2] / "docs" / "op_coverage.md"


def test_every_70th_entry(tmp_path: Path) -> None:
    entries = [e for e in load_entries() if e.name not in OUT_OF_SCOPE and e.dtypes][7::EVERY]
    jobs = [
        Job(entry=entry.name, dtype=entry.dtypes[i % len(entry.dtypes)], count=1)
        for i, entry in enumerate(entries)
    ]
    assert len(jobs) > 7
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
