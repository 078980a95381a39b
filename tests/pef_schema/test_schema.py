"""The schema, the code made from it and the dataclasses say the same, and old files stay valid."""

from __future__ import annotations

import enum
import shutil
import sys
from pathlib import Path

import pytest

from pef_schema import (
    MIN_READER,
    WRITER_VERSION,
    ArginKind,
    DType,
    OptimizerKind,
    OutputGrad,
    Role,
    SectionKind,
)
from pef_schema._generated.pef import ENUMS, FBS_SHA256
from pef_schema.rows import ArgTag
from tests.pef_schema.goldens import FOLDER
from tools import regen_schema

_TEXT = regen_schema.SCHEMA.read_text(encoding="utf-8")


def test_generated_code_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert regen_schema.main(["--check"]) == 0
    printed = capsys.readouterr().out
    assert "pef_schema/_generated/pef.py matches" in printed
    assert ("skipped: no flatc" in printed) == (shutil.which("flatc") is None)
    assert FBS_SHA256 in regen_schema.generate(_TEXT)


def test_missing_flatc_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert regen_schema.main(["--check"]) == 0
    assert "skipped: no flatc" in capsys.readouterr().out


def test_stale_code_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "pef.fbs"
    changed.write_text(_TEXT.replace("twin: int", "double: int"), encoding="utf-8")
    monkeypatch.setattr(regen_schema, "SCHEMA", changed)
    monkeypatch.setattr(regen_schema, "ROOT", Path("/"))
    monkeypatch.setenv("PATH", "")
    assert regen_schema.main(["--check"]) == 1
    assert "does not match" in capsys.readouterr().err


def test_other_slots_of_flatc_are_found(tmp_path: Path) -> None:
    """A compiler that numbers fields otherwise than we do must not go unnoticed."""
    flatc = tmp_path / "flatc"
    flatc.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[3])\n"
        "code = 'def CallAddCallId(builder, x): builder.PrependInt32Slot(1, x, 0)'\n"
        "(folder / 'Call.py').write_text(code)\n"
    )
    flatc.chmod(0o755)
    schema = regen_schema.SchemaText(
        enums={}, tables={"Call": regen_schema.parse(_TEXT).tables["Call"]}, root="", identifier=""
    )
    (problem,) = regen_schema.compare_with_flatc(schema, regen_schema.SCHEMA, str(flatc))
    assert problem.startswith("table Call: flatc's slots are")


def test_a_new_kind_of_optimizer_is_written_into_the_schema(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing else in the schema changes."""
    rules = tmp_path / "rules.py"
    text = regen_schema.RULES.read_text(encoding="utf-8")
    rules.write_text(text.replace("    SGD = 1\n", "    SGD = 1\n    OTHER = 200\n"))
    monkeypatch.setattr(regen_schema, "RULES", rules)
    monkeypatch.setattr(regen_schema, "ROOT", Path("/"))
    before, after = regen_schema.parse(_TEXT), regen_schema.parse(regen_schema.with_kinds(_TEXT))
    assert after.enums["OptimizerKind"] == {**before.enums["OptimizerKind"], "OTHER": 200}
    assert regen_schema.incompatibilities(before, after) == []
    assert "// Last used id: 200.\nenum OptimizerKind" in regen_schema.with_kinds(_TEXT)
    assert regen_schema.main(["--check"]) == 1
    assert "run python tools/regen_schema.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", [DType, Role, SectionKind, OptimizerKind, ArginKind, OutputGrad, ArgTag]
)
def test_enums_agree(kind: type[enum.IntEnum]) -> None:
    wanted = {"MISSING": 0, **{member.name: member.value for member in kind}}
    assert ENUMS[kind.__name__] == wanted


def test_last_used_ids_are_noted() -> None:
    for name, members in ENUMS.items():
        before = _TEXT[: _TEXT.index(f"enum {name} ")].rstrip().splitlines()[-1]
        assert before == f"// Last used id: {max(members.values())}."


def test_released_versions_are_kept() -> None:
    """Each released schema reads on, and the current one changes only with its version."""
    assert 1 <= MIN_READER <= WRITER_VERSION
    now = regen_schema.parse(_TEXT)
    for version in range(1, WRITER_VERSION + 1):
        path = FOLDER / f"v{version}.fbs"
        assert path.exists(), "run python -m tests.pef_schema.goldens"
        released = regen_schema.parse(path.read_text(encoding="utf-8"))
        assert regen_schema.incompatibilities(released, now) == []
        if version == WRITER_VERSION:
            assert now == released, "the schema changed: raise WRITER_VERSION, or `since` in a row"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  twin: int = -1 (id: 2);\n", "", "Section.twin (id 2) was removed"),
        ("twin: int = -1", "twin: long = -1", "Section.twin was"),
        ("twin: int = -1", "twin: int = 0", "Section.twin was"),
        (
            "twin: int = -1 (id: 2)",
            "twin: int = -1 (id: 2);\n  x: string (id: 3, required)",
            "Section.x is new and required",
        ),
        (
            "call_id: int = -1 (id: 0);\n  section: int = -1 (id: 1)",
            "section: int = -1 (id: 0);\n  call_id: int = -1 (id: 1)",
            "Call.call_id was",
        ),
        ("FWD = 2", "FWD = 9", "SectionKind.FWD was 2, is 9"),
        (", OPT = 6", "", "SectionKind.OPT was 6, is removed"),
        ('"SPEF"', '"XPEF"', "file_identifier must stay"),
    ],
)
def test_breaking_changes_are_refused(old: str, new: str, problem: str) -> None:
    assert old in _TEXT
    before, after = regen_schema.parse(_TEXT), regen_schema.parse(_TEXT.replace(old, new))
    assert any(problem in found for found in regen_schema.incompatibilities(before, after))


def test_added_optional_field_is_allowed() -> None:
    after = _TEXT.replace("twin: int = -1 (id: 2);", "twin: int = -1 (id: 2);\n  x: int (id: 3);")
    before = regen_schema.parse(_TEXT)
    assert regen_schema.incompatibilities(before, regen_schema.parse(after)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("twin: int = -1 (id: 2)", "twin: int = -1 (id: 3)", "ids must be 0, 1, 2"),
        ("twin: int = -1 (id: 2)", "twin: int = -1", "cannot read"),
        ("twin: int", "twin: Step", "type Step of twin is not known"),
        ("enum Role : ubyte", "enum Role : int", "only ubyte is known"),
        ("ARGIN = 11", "ARGIN", "write every member as NAME = number"),
        ("root_type Program;", "", "root_type and file_identifier"),
    ],
)
def test_unknown_schema_text_is_refused(old: str, new: str, problem: str) -> None:
    assert old in _TEXT
    with pytest.raises(regen_schema.SchemaError, match=problem):
        regen_schema.parse(_TEXT.replace(old, new))
