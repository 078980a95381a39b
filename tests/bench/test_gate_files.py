"""Files of the user's gate: bases that are kept, and section times that are compared."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.errors import BadBase, BadSectionTimes, TimesOfTwoProcessors
from bench.measurement import FULL, Results
from bench.section_times import compared, keep_base, load_section_times, opened_base
from emulator.processor import processor
from pef_schema import write_pef
from tests.samba.inspection.programs import chain

TIMES = {"fwd_0": [2e-3, 1e-3, 3e-3], FULL: [5e-3]}


@pytest.fixture
def pef(tmp_path: Path) -> Path:
    """A PEF of three sections."""
    path = tmp_path / "net.pef"
    write_pef(str(path), chain(("relu", "sigmoid", "tanh")))
    return path


@pytest.fixture
def base(tmp_path: Path, pef: Path) -> Path:
    """A kept base of it."""
    path = tmp_path / "base.json"
    keep_base(path, pef, TIMES)
    return path


def test_a_base_holds_the_program_and_its_times(pef: Path, base: Path) -> None:
    with opened_base(base) as found:
        assert found.pef != pef and found.pef.read_bytes() == pef.read_bytes()
        assert found.processor == str(processor())
        assert {name: pytest.approx(t) for name, t in found.seconds.items()} == TIMES
        assert found.since_then(10e-3).startswith("base takes 2.000 of the time")
    assert not found.pef.exists()
    with opened_base(pef) as found:
        assert found.pef == pef and found.since_then(1.0) == ""


def test_what_is_no_base_is_told(tmp_path: Path, pef: Path, base: Path) -> None:
    whole = base.read_text()
    cut = base64.b64encode(zlib.compress(pef.read_bytes())[:-9]).decode()
    other = base64.b64encode(zlib.compress(b"SAMB" * 40)).decode()
    another = tmp_path / "another.pef"
    write_pef(str(another), chain(["relu"]))
    swapped = base64.b64encode(zlib.compress(another.read_bytes())).decode()
    for said, text in (
        ("not JSON", whole[: len(whole) // 2]),
        ("times alone", json.dumps([{"name": "fwd_0", "median_ms": 1.0}])),
        ("wanted 'bench.gate' version 1", json.dumps({"format": 3, "measurements": []})),
        ("found format 'bench.gate' version 9", json.dumps(json.loads(whole) | {"version": 9})),
        ("it holds no PEF", json.dumps(json.loads(whole) | {"pef": "%%"})),
        ("is cut", json.dumps(json.loads(whole) | {"pef": cut})),
        ("the PEF in it is bad", json.dumps(json.loads(whole) | {"pef": other})),
        ("not the one that it names", json.dumps(json.loads(whole) | {"pef": swapped})),
        ("whole nanoseconds", json.dumps(json.loads(whole) | {"nanoseconds": {"a": [0]}})),
        ("whole nanoseconds", json.dumps(json.loads(whole) | {"nanoseconds": {}})),
    ):
        base.write_text(text)
        with pytest.raises(BadBase, match=said) as caught, opened_base(base):
            pass
        assert caught.value.path == str(base)


def reported(path: Path, factor: float) -> Path:
    """A report of measure-sections whose second section takes longer by a factor."""
    rows = [
        {"name": f"fwd_{i}", "samples_ms": [(1 + i) * factor**i * (1 + k / 500) for k in range(20)]}
        for i in range(2)
    ]
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1)])
def test_compare_takes_section_times(
    tmp_path: Path, factor: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = reported(tmp_path / "a.json", 1.0), reported(tmp_path / "b.json", factor)
    assert main(["compare", str(before), str(after)]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["fwd_0", "fwd_1"]
    assert lines[1].endswith("slower") == bool(code)
    assert lines[-1].startswith("A weak verdict") and "in turns" in lines[-1]


def test_compare_takes_kept_bases_of_one_processor(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(base.read_text()) | {"processor": "another"}))
    found, lines = compared(base, reported(tmp_path / "a.json", 1.0))
    assert [one.name for one in found] == ["fwd_0"]
    assert lines == ["fwd_1: only in head", f"{FULL}: only in base"]
    with pytest.raises(TimesOfTwoProcessors, match="such ratios say nothing") as caught:
        compared(base, other)
    assert caught.value.processors == (str(processor()), "another")
    assert main(["compare", str(base), str(other)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["compare", str(base), str(other), "--across-processors"]) == 0
    assert "ACROSS PROCESSORS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not JSON"),
        ("{}", "no list of sections"),
        ("[]", "a section without times"),
        ('[{"name": "a"}]', "a row without 'samples_ms'"),
        ('[{"name": "a", "samples_ms": []}]', "a section without times"),
        ('[{"name": "a", "samples_ms": [NaN]}]', "a section without times"),
        ('[{"name": "a", "samples_ms": ["x"]}]', "no rows"),
        ("[3]", "no rows"),
    ],
)
def test_bad_section_times_are_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(BadSectionTimes, match=said):
        load_section_times(path)


def test_section_times_and_results_do_not_mix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, results = reported(tmp_path / "a.json", 1.0), tmp_path / "results.json"
    Results().save(results)
    none = tmp_path / "none.json"
    none.write_text('[{"name": "other", "samples_ms": [1.0]}]')
    for base, head, said in (
        (times, results, "no list of sections"),
        (results, times, "no list of sections"),
        (times, none, "it has no section of"),
        (times, tmp_path / "missing", "cannot be read"),
    ):
        assert main(["compare", str(base), str(head)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
