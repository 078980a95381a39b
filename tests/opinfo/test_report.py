"""The coverage page and the verdict on a run, from records that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.opinfo.record import Outcome, Record, read_records
from tests.opinfo.report import by_entry, page, problems, shares

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
    assert problems(records(969, 31)) == ["forward: 96.9 % of the entries pass, wanted 97 %"]
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
