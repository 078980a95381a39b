"""The gate of a user's PEF: its files, its usage, and the gate itself on a small program."""

from __future__ import annotations

import argparse
import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from bench.__main__ import _parser, main
from bench.errors import BadBase, BadSectionTimes, ScriptFailed
from bench.gate import GateSettings
from bench.inside.sections import sections
from bench.measurement import FULL
from bench.tree import ROOT
from bench.users.base_file import base_pef, keep_base
from bench.users.program import PefContestant
from bench.users.script import measure_script
from bench.users.section_times import load_section_times
from pef_schema import read_pef, write_pef
from tests.samba.inspection.programs import chain

SECTIONS = ("relu", "sigmoid", "tanh")
TIMES = {"fwd_0": [2e-3, 1e-3, 3e-3], FULL: [5e-3]}


@pytest.fixture
def pef(tmp_path: Path) -> Path:
    """A PEF of three sections."""
    path = tmp_path / "net.pef"
    write_pef(str(path), chain(SECTIONS))
    return path


@pytest.fixture
def base(tmp_path: Path, pef: Path) -> Path:
    """A kept base of it."""
    path = tmp_path / "base.json"
    keep_base(path, pef, TIMES)
    return path


def edited(path: Path, **changes: object) -> Path:
    """The same base with some keys changed."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_base_holds_the_program_and_its_times(pef: Path, base: Path) -> None:
    with base_pef(base) as found:
        assert found != pef
        assert found.read_bytes() == pef.read_bytes()
    assert not found.exists()
    assert json.loads(base.read_text())["median_seconds"] == {"fwd_0": 2e-3, FULL: 5e-3}
    with base_pef(pef) as found:
        assert found == pef


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
        ("it holds no PEF", json.dumps(json.loads(whole) | {"pef": "%%"})),
        ("is cut", json.dumps(json.loads(whole) | {"pef": cut})),
        ("the PEF in it is bad", json.dumps(json.loads(whole) | {"pef": other})),
        ("not the one that it names", json.dumps(json.loads(whole) | {"pef": swapped})),
    ):
        base.write_text(text)
        with pytest.raises(BadBase, match=said) as caught, base_pef(base):
            pass
        assert caught.value.path == str(base)
    damaged = tmp_path / "damaged.pef"
    damaged.write_bytes(pef.read_bytes()[:99])
    for path in (tmp_path / "missing", tmp_path, damaged):
        with pytest.raises(BadBase), base_pef(path):
            pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pef=PEF"], "give --base"),
        (["--pef=PEF", "--base=PEF", "--keep=x"], "give --base"),
        (["--pef=PEF", "--base=PEF", "--model", "lenet-32"], "--model is for the bench's own"),
        (["--pef=PEF", "--base=PEF", "--script=none.py"], "there is no file"),
        (["--pef=missing.pef", "--base=PEF"], "missing.pef"),
        (["--pef=PEF", "--base=missing.json"], "missing.json"),
        (["--keep=x"], "give --base REV, or --pef"),
        ([], "give --base REV, or --pef"),
    ],
)
def test_wrong_usage_is_one_line(
    pef: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", *(a.replace("PEF", str(pef)) for a in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert said in line


def test_every_section_of_a_pef_runs_on_drawn_numbers(pef: Path) -> None:
    contestant = PefContestant(str(pef))
    found = sections(contestant, 2, {"fwd_1": 3.0})
    names = [section.name for section in read_pef(str(pef)).sections]
    assert list(found) == [*names, FULL]
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
    assert found["fwd_1"][0] > 2 * 0.9 * min(found["fwd_0"]), "the plant took its time"


def reported(path: Path, factor: float) -> Path:
    """A report of measure-sections whose second section takes longer by a factor."""
    rows = [
        {"name": f"fwd_{i}", "samples_ms": [(1 + i + k / 500) * (factor if i else 1.0)]}
        for i in range(2)
        for k in range(1)
    ]
    for row in rows:
        row["samples_ms"] = [row["samples_ms"][0] * (1 + k / 500) for k in range(20)]
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
    assert "in turns" in lines[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not JSON"),
        ("[]", "a section without times"),
        ('[{"name": "a"}]', "a row without 'samples_ms'"),
        ('[{"name": "a", "samples_ms": []}]', "a section without times"),
        ('[{"name": "a", "samples_ms": ["x"]}]', "no rows"),
        ("[3]", "no rows"),
    ],
)
def test_bad_section_times_are_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(BadSectionTimes, match=said):
        load_section_times(path)


SCRIPT = """\
import json, sys
options = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[2:] if "=" in a)
assert sys.argv[1] == "measure-sections" and sys.argv[-1] == "--big", sys.argv
if "bad" in options["pef"]:
    sys.exit("no such program")
slow = 2.0 if "head" in options["pef"] else 1.0
rows = [{"name": "s", "samples_ms": [slow] * int(options["num-iterations"])}]
json.dump(rows, open(options["json"], "w"))
"""


def test_a_script_measures_both_sides_in_turns(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT)
    settings = GateSettings(rounds=4, plants={})
    words = [str(script), "--big"]
    found = measure_script(words, Path("base.pef"), Path("head.pef"), settings, 3)
    assert found == {"s": ([1e-3] * 12, [2e-3] * 12)}
    with pytest.raises(ScriptFailed, match="code 1: no such program"):
        measure_script(words, Path("base.pef"), Path("bad.pef"), settings, 1)
    script.write_text("pass")
    with pytest.raises(BadSectionTimes, match="ended without a report"):
        measure_script(words, Path("base.pef"), Path("head.pef"), settings, 1)


def test_the_page_names_every_option_there_is() -> None:
    page = (ROOT / "docs/gate.md").read_text()
    (gate,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = {
        name: {o for action in parser._actions for o in action.option_strings}
        for name, parser in gate.choices.items()
    }
    said = re.findall(r"python -m bench (gate|selftest|compare)([^`#\n]*)", page)
    assert len(said) >= 7
    for command, rest in said:
        assert set(re.findall(r"(?<=\s)--[a-z-]+", rest)) <= known[command], rest
    for option in ("--pef", "--keep", "--script", "--base"):
        assert option in page and option in known["gate"]


@pytest.mark.slow
def test_the_gate_on_a_pef(
    pef: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kept base, the gate against it, and a plant that it catches."""
    kept, report = tmp_path / "kept.json", tmp_path / "report.json"
    assert main(["gate", f"--pef={pef}", f"--keep={kept}", "--processes=1", "--rounds=2"]) == 0
    assert "3 sections" in capsys.readouterr().out
    times = json.loads(kept.read_text())["median_seconds"]
    assert len(times) == 4 and all(t > 0 for t in times.values())
    few = ["--processes=1", "--rounds=3"]
    assert main(["gate", f"--pef={pef}", f"--base={kept}", f"--json={report}", *few]) in (0, 1)
    (case,) = json.loads(report.read_text())["cases"]
    assert [c["name"] for c in case["first"]] == list(times)
    capsys.readouterr()
    assert main(["selftest", f"--pef={pef}", "--plant", "fwd_1=3"]) == 0
    assert "fwd_1 planted 3 times as slow: caught" in capsys.readouterr().out
