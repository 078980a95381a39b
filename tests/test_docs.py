"""Pages name files that exist, in backticks and links, and the names in a link's text are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.write_rooms import table, with_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
ROOMS = (
    "samba",
    "emulator",
    "pef_schema",
    "sambaflow",
    "bench",
    "tests",
    "tools",
    "docs",
    "examples",
)

PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)")
NAMED = re.compile(r"\[`([\w.]+)`\]\(([^)#\s]+\.py)\)")
"""A link whose text is a name in a Python file."""


def missing(page: Path, text: str) -> list[str]:
    """Paths and links of a page that lead nowhere."""
    paths = [(ROOT, path) for path in PATH.findall(text)]
    links = [(page.parent, link) for link in LINK.findall(text) if "://" not in link]
    return [name for folder, name in paths + links if not (folder / name).exists()]


def defined(path: Path) -> set[str]:
    """Names that a file defines: its functions, classes and variables, methods with their class."""
    found: set[str] = set()

    def look(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(before + node.name)
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{before}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(before + t.id for t in targets if isinstance(t, ast.Name))

    look(ast.parse(path.read_text()).body, "")
    return found


def undefined(page: Path, text: str) -> list[str]:
    """Links of a page whose text names what the file does not define."""
    return [
        f"{name} in {link}"
        for name, link in NAMED.findall(text)
        if "://" not in link and not name.endswith(".py")
        if name not in defined(page.parent / link)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    assert missing(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_in_a_file_is_defined_there(page):
    assert undefined(page, page.read_text()) == []


def test_a_name_that_leads_nowhere_is_found():
    text = "`samba/nowhere.py` and [a page](docs/none.md#there), [this](docs/architecture.md)"
    assert missing(ROOT / "README.md", text) == ["samba/nowhere.py", "docs/none.md"]


def test_a_name_that_its_file_does_not_define_is_found():
    text = (
        "[`Device.run`](emulator/device.py), [`write_pef`](emulator/device.py), "
        "[`Device.fly`](emulator/device.py) and [`device.py`](emulator/device.py)"
    )
    assert undefined(ROOT / "README.md", text) == [
        "write_pef in emulator/device.py",
        "Device.fly in emulator/device.py",
    ]


CODE = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if room != "tests"]
DOC = re.compile(r"\bdocs/[\w/.-]+\.md\b")


def test_pages_that_code_names_exist():
    """Messages and docstrings send a reader to pages that are there."""
    named = {(path, name) for path in CODE for name in DOC.findall(path.read_text())}
    assert len(named) > 20
    assert sorted(str(path) for path, name in named if not (ROOT / name).exists()) == []


def test_the_table_of_rooms_is_made_of_the_packages_docstrings():
    """``python tools/write_rooms.py`` writes it anew."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert table() in text and with_table(text) == text
    assert with_table(text.replace("| `emulator/ops/` |", "| `emulator/opera/` |")) == text
