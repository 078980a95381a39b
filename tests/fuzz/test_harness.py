"""The harness bites: each kind of fault, put in on purpose, is found and told."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pef_schema import PefError, decode
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import Campaign
from tests.fuzz.finds import minimised
from tests.fuzz.outcome import dumped_place, terminal
from tests.fuzz.pool import Worker
from tests.pef_schema.fuzz.cases import KINDS, SHARES, Case


def _accepted(count: int) -> list[str]:
    """Names of cases that today's reader accepts."""
    found: list[str] = []
    seed = 0
    while len(found) < count:
        case = Case(kind="sound", seed=seed)
        seed += 1
        try:
            decode(case.build())
        except PefError:
            continue
        found.append(str(case))
    return found


@pytest.mark.parametrize(
    ("plant", "label"),
    [
        ("foreign", "KeyError"),
        ("abort", "signal 6"),
        ("exit", "exit 0"),
        ("memory", "memory"),
        ("hang", "hang"),
    ],
)
def test_each_kind_of_fault_is_found(plant: str, label: str) -> None:
    """And a worker is there again for the next case."""
    cases = _accepted(2 if plant == "abort" else 1)
    with closing(Worker("reading", deadline=0.3, plant=plant)) as worker:
        results = list(worker.tries(cases))
    assert [result.case for result in results] == cases
    assert {(result.outcome.find, result.outcome.label) for result in results} == {(True, label)}
    if label == "memory":  # the reader has let go of everything, its traceback included
        assert "there is not enough memory to read it" in results[0].outcome.text
    elif label != "exit 0":
        assert "plants.py" in results[0].outcome.text
        assert results[0].outcome.place.startswith("pef_schema/read.py:")


@pytest.mark.slow
def test_a_blind_verifier_is_found(tmp_path: Path) -> None:
    """Without the rule of indices, what it would have refused goes on and fails elsewhere."""
    campaign = Campaign(target="reading", folder=tmp_path, shares={"rows": 1})
    lines = campaign.go(200, workers=1, plant="blind")
    assert lines
    for line in lines:
        command = line.rpartition("tests.fuzz reading ")[2]
        written = Path(line.split("\n")[1].split(": ")[0].strip())
        assert Case.parse(command).build() == written.read_bytes()
        assert command in written.with_suffix(".txt").read_text(encoding="utf-8")
    assert any(label.startswith("find: ") for _, label in campaign.counts)
    assert "find: " in campaign.table()


def test_finds_are_made_small() -> None:
    """Changes that a find does not need are left out."""
    several = [case for case in map(Case.parse, _accepted(30)) if case.changes() > 1]
    with closing(Worker("reading", plant="foreign")) as worker:
        (found,) = worker.tries([str(several[0])])
        small = Case.parse(minimised(found, worker))
    assert found.outcome.find
    assert small.keep == ()
    assert small.build() != several[0].build()


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_the_same_everywhere(kind: str) -> None:
    """Made here and in a process of its own, in another order and with other hashes of strings."""
    cases = [Case(kind=kind, seed=seed) for seed in (3, 1, 2)]
    assert [Case.parse(str(case)) for case in cases] == cases
    made = [case.build() for case in cases]
    assert [case.build() for case in reversed(cases)] == made[::-1]
    assert len(set(made)) == 3


def test_shares() -> None:
    assert set(SHARES) == set(KINDS)
    assert sum(SHARES.values()) == 100


def test_no_case() -> None:
    with pytest.raises(ValueError, match="'nothing:1' is not a case: expected KIND:SEED"):
        Case.parse("nothing:1")


def test_a_terminal_is_not_given_orders() -> None:
    assert not terminal("listing", "one\ntwo é").find
    for char in ("\x1b", "\x07", "\x9b", "\u202e", "\u2066"):
        assert terminal("listing", f"name {char}x").find


def test_place_in_a_dump() -> None:
    root = Path(__file__).parents[2]
    text = (
        "Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/usr/lib/python3.11/json/decoder.py", line 3 in decode\n'
        f'  File "{root}/emulator/device.py", line 170 in run\n'
    )
    assert dumped_place(text) == "emulator/device.py:170 in run"


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--readings", "20", "--workers", "1", "--minutes", "5", "--corpus", str(tmp_path)])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "reading: 20 of 20, 0 finds" in told
    assert "most memory" in told
    assert not (tmp_path / "finds").exists()


def test_no_time_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--readings", "20", "--workers", "1", "--minutes", "0"]) == 0
    assert "not all cases were tried in the minutes given: 0 of 20" in capsys.readouterr().out
