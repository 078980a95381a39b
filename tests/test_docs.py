"""Pages name files that exist: paths in backticks and relative links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def missing(page: Path, text: str) -> list[str]:
    """Paths and links of a page that lead nowhere."""
    paths = [(ROOT, path) for path in PATH.findall(text)]
    links = [(page.parent, link) for link in LINK.findall(text) if "://" not in link]
    return [name for folder, name in paths + links if not (folder / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    assert missing(page, page.read_text()) == []


def test_a_name_that_leads_nowhere_is_found():
    text = "`samba/nowhere.py` and [a page](docs/none.md#there), [this](docs/architecture.md)"
    assert missing(ROOT / "README.md", text) == ["samba/nowhere.py", "docs/none.md"]
