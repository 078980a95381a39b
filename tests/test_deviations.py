"""docs/deviations.md has a row for every deviation that the code tells or refuses, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "deviations.md"
ROW = re.compile(r"^\| `([\w-]+)` \|(.*)\|$", re.M)
TEST = re.compile(r"\[`(test_\w+)`\]\(\.\./([^)]+)\)")

WORDS = re.compile("tell|named|deviation|warn")
"""Names in the code that is looked for: a file without any of them need not be parsed."""

OPERATIONAL = {
    "emulator/kernels/target.py": 1,  # replicas take XLA's kernels: the same within rounding
    "emulator/native/library.py": 1,  # native kernels are left out: the numbers are XLA's
    "emulator/kept_files.py": 1,  # what cannot be kept is made again
    "emulator/start.py": 1,  # of processes: jax's own, but for loaders
    "samba/sambaloader.py": 1,  # a batch that failed, where the script asked to go on
    "samba/session/following.py": 1,  # of a log that cannot be written, not of numbers
    "samba/session/profiling.py": 3,  # of profiles and timelines, not of numbers
    "samba/session/step_log.py": 1,  # of a log without TensorBoard
    "samba/session/timeline.py": 1,  # of a timeline without kernels, not of numbers
    "samba/support/deviations.py": 1,  # where all others are logged
}
"""Warnings that tell no difference: how many by file."""


def rows(text: str, heading: str) -> dict[str, str]:
    """Rows of the section under a heading: the other columns by name."""
    section = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return dict(ROW.findall(section))


def named(source: str) -> tuple[set[str], set[str], int]:
    """Deviations that a file tells, those that it refuses, and its warnings without a name."""
    told: set[str] = set()
    refused: set[str] = set()
    warnings = 0
    if not WORDS.search(source):
        return told, refused, warnings
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="tell" | "named")
                | ast.Attribute(
                    attr="tell",
                    value=ast.Name(id="deviations") | ast.Attribute(attr="_deviations"),
                ),
                args=[ast.Constant(value=str(name)), *_],
            ):
                told.add(name)
            case ast.Call(func=ast.Attribute(attr="warning")):
                warnings += 1
            case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn")):
                warnings += 1
            case (
                ast.keyword(arg="deviation", value=ast.Constant(str(name)))
                | ast.Assign(targets=[ast.Name(id="deviation")], value=ast.Constant(str(name)))
                | ast.AnnAssign(target=ast.Name(id="deviation"), value=ast.Constant(str(name)))
            ):
                refused.add(name)
            case _:
                pass
    return told, refused - {""}, warnings


@cache
def in_code() -> tuple[set[str], set[str], dict[str, int]]:
    told: set[str] = set()
    refused: set[str] = set()
    unnamed: dict[str, int] = {}
    for package in ("samba", "emulator", "pef_schema", "sambaflow"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tells, refuses, warnings = named(path.read_text(encoding="utf-8"))
            told |= tells
            refused |= refuses
            if warnings:
                unnamed[path.relative_to(ROOT).as_posix()] = warnings
    return told, refused, unnamed


def test_every_warning_of_the_code_has_its_row_and_every_row_its_warning():
    assert sorted(rows(PAGE.read_text(), "Warnings")) == sorted(in_code()[0])


def test_every_refusal_of_the_code_has_its_row_and_every_row_its_refusal():
    assert sorted(rows(PAGE.read_text(), "Refusals")) == sorted(in_code()[1])


def test_a_warning_without_a_name_tells_no_difference():
    assert in_code()[2] == OPERATIONAL


def test_every_test_of_the_page_exists():
    tests = TEST.findall(PAGE.read_text())
    missing = [test for test, path in tests if f"def {test}(" not in (ROOT / path).read_text()]
    assert not missing


def test_every_row_has_a_reason_and_a_test():
    text = PAGE.read_text()
    for name, columns in (rows(text, "Warnings") | rows(text, "Refusals")).items():
        cells = [cell.strip() for cell in columns.split(" | ")]
        assert len(cells) == 3 and all(cells), name
        assert TEST.search(cells[-1]), f"{name}: no test"


def test_names_are_found_in_code():
    source = (
        'tell("a", text)\nself._deviations.tell("b", text)\nlog.warning("x")\n'
        'watchdog.tell("failed")\n'
        'raise TraceError(deviation="c")\nclass E(Exception):\n    deviation = "d"\n'
        'class F(Exception):\n    deviation: str = "e"\n    other = "f"\n'
    )
    assert named(source) == ({"a", "b"}, {"c", "d", "e"}, 1)
