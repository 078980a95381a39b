"""The rules of the import graph are checked by import-linter.

Each test plants one violation in a copy of the packages and looks for the line that tells of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.processes import finished
from tools.room_lines import beyond, counted, with_budgets

ROOT = Path(__file__).parents[1]
PACKAGES = ("bench", "emulator", "examples", "pef_schema", "samba", "sambaflow", "tools")
LINT = Path(sys.executable).with_name("lint-imports")
COMMAND = [LINT, "--no-logo", "--no-cache"]


@pytest.fixture
def tree(tmp_path):
    """A copy of what the rules are about."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=lambda folder, names: [
                name for name in names if not (name.endswith(".py") or Path(folder, name).is_dir())
            ],
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(command, tree):
    """Run a command in a tree and return its exit status and output."""
    done = finished(
        [str(part) for part in command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": "", "COLUMNS": "200", "NO_COLOR": "1"},
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def plant(tree, path, line):
    """Write a line at the end of a file and return its number."""
    file = tree / path
    text = file.read_text()
    file.write_text(f"{text}{line}\n")
    return len(text.splitlines()) + line.count("\n") + 1


CIRCLES = "No folder and no file is in an import circle"
"""The contract that ``test_circles_bite`` is about."""

PLANTED = {
    "Packages import those below them": [
        ("emulator/errors.py", "import samba.errors", "emulator.errors -> samba.errors"),
    ],
    "Rooms of samba import those below them": [
        ("samba/support/naming.py", "import samba.graph", "samba.support.naming -> samba.graph"),
        ("samba/test.py", "import samba.sn_private", "samba.test -> samba.sn_private"),
    ],
    "Rooms of the emulator import those below them": [
        ("emulator/ops/_slopes.py", "import emulator.lowering", "_slopes -> emulator.lowering"),
        ("emulator/memory/pool.py", "import emulator.ops.reduce", "pool -> emulator.ops.reduce"),
    ],
    "Tracer and compiler know an op's facts but not its lowering": [
        (
            "samba/compiler/sections.py",
            "import emulator.ops.linalg",
            "sections -> emulator.ops.linalg",
        ),
    ],
    "A suite of the bench knows of no other": [
        ("bench/suites/host.py", "import bench.suites.steps", "host -> bench.suites.steps"),
    ],
    "Helpers that anything may import do not import one another": [
        ("samba/support/nesting.py", "import samba.support.naming", "nesting -> samba.support"),
    ],
    "A PEF is read and written without torch and jax": [
        ("pef_schema/rows.py", "import jax", "pef_schema.rows -> jax"),
    ],
    "The device side knows nothing of torch": [
        ("emulator/dtypes.py", "def f():\n    import torch", "emulator.dtypes -> torch"),
    ],
    "The front end leaves jax to the emulator": [
        ("samba/env.py", "import jax.numpy", "samba.env -> jax"),
    ],
    "sambaflow is a name for samba": [
        ("sambaflow/__init__.py", "import torch", "sambaflow -> torch"),
    ],
    "Examples are written as SambaFlow's scripts are": [
        ("examples/lenet.py", "import samba", "examples.lenet -> samba"),
    ],
}
"""For each contract the violations planted: a file, the line written to it, what is told of it."""


@pytest.mark.slow
def test_a_copy_without_violations_is_good(tree):
    """``make lint`` says so of the packages themselves."""
    status, printed = run(COMMAND, tree)
    assert status == 0, printed


def test_each_contract_bites(tree):
    contracts = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["importlinter"]
    names = [contract["name"] for contract in contracts["contracts"]]
    assert [name for name in names if name != CIRCLES] == list(PLANTED)
    planted = [violation for each in PLANTED.values() for violation in each]
    lines = [plant(tree, path, line) for path, line, _ in planted]
    status, printed = run(COMMAND, tree)
    assert status == 1
    for name in PLANTED:
        assert f"{name} BROKEN" in printed
    for (_, _, told), line in zip(planted, lines, strict=True):
        assert any(f"l.{line})" in text and told in text for text in printed.splitlines()), told


@pytest.mark.slow
def test_a_module_without_a_layer_and_a_needless_exception_are_told(tree):
    (tree / "samba/stray.py").write_text("")
    status, printed = run(COMMAND, tree)
    assert status == 1
    assert "samba.stray" in printed and "must be declared as a layer" in printed
    (tree / "samba/stray.py").unlink()
    path = tree / "pyproject.toml"
    before, opening, after = path.read_text().partition("ignore_imports = [")
    assert opening
    path.write_text(f'{before}{opening}\n"samba.session.running -> samba.schema",\n{after}')
    status, printed = run(COMMAND, tree)
    assert status == 1
    assert "samba.session.running -> samba.schema" in printed


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "])
def test_circles_bite(tree, guard):
    """Two files of one folder, and two folders, for the type checker alone as well."""
    (tree / "emulator/memory/one.py").write_text("import emulator.memory.two\n")
    (tree / "emulator/memory/two.py").write_text(f"{guard}import emulator.memory.one\n")
    (tree / "samba/schema/one.py").write_text(f"{guard}import samba.graph\n")
    plant(tree, "samba/graph.py", "import samba.schema.one")
    status, printed = run(COMMAND, tree)
    assert status == 1
    assert f"{CIRCLES} BROKEN" in printed
    assert "No cycles are allowed in emulator.memory." in printed
    assert "No cycles are allowed in samba." in printed


def write(root: Path, name: str, lines: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n" * lines)


def test_a_room_is_a_folder_or_what_lies_beside_folders(tmp_path: Path) -> None:
    write(tmp_path, "samba/a.py", 3)
    write(tmp_path, "samba/session/b.py", 4)
    write(tmp_path, "samba/session/inner/c.py", 5)
    write(tmp_path, "pef_schema/_generated/pef.py", 90)
    write(tmp_path, "tests/test_a.py", 7)
    lines, files = counted(tmp_path)
    assert lines == {"samba": 3, "samba/session": 9, "tests": 7}
    assert files == {"samba": 1, "samba/session": 2, "tests": 1}


def test_a_room_beyond_its_budget_is_told() -> None:
    assert beyond({"samba": 100}, {"samba": 100}) == []
    (text,) = beyond({"samba": 101}, {"samba": 100})
    assert "samba has 101 lines, 1 above its budget of 100" in text
    (text,) = beyond({"emulator/new": 5}, {})
    assert "emulator/new has 5 lines and no budget" in text
    (text,) = beyond({}, {"samba/gone": 10})
    assert "samba/gone has a budget and no files" in text


def test_budgets_are_written_in_the_place_of_others() -> None:
    text = '[tool.a]\nx = 1\n\n[tool.room_lines]\n"gone" = 5\n\n[tool.b]\ny = 2\n'
    found = tomllib.loads(with_budgets(text, {"samba": 1000, "samba/session": 99}))["tool"]
    assert found["room_lines"] == {"samba": 1030, "samba/session": 110}
    assert (found["a"], found["b"]) == ({"x": 1}, {"y": 2})
