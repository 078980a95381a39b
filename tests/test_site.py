"""The documentation builds as a site: every page has its place, every link leads somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.processes import finished

ROOT = Path(__file__).parents[1]
BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    folder = tmp_path_factory.mktemp("site")
    done = finished([*BUILD, "--site-dir", str(folder)], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    pages = {p.parent / "index" if p.name == "README" else p for p in pages}
    built = {p.relative_to(site).with_suffix("") for p in site.rglob("*.html")}
    assert pages <= built


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        found = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', path.read_text()
        )
        assert not found, f"{path}: {found}"


def test_the_reference_has_signatures_and_arguments(site: Path) -> None:
    text = (site / "reference" / "session.html").read_text()
    for word in ("run", "output_tensors", "hyperparam_dict", "to_cpu", "Returns", "Raises"):
        assert word in text


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """The check bites: a page with each kind of bad link."""
    docs = tmp_path / "docs"
    docs.mkdir()
    config = re.sub(r"(?ms)^nav:.*", "", (ROOT / "mkdocs.yml").read_text())
    config = re.sub(r"(?s)  - mkdocstrings:.*?(?=markdown_extensions)", "", config)
    config = config.replace("tools/site_hooks.py", str(ROOT / "tools" / "site_hooks.py"))
    (tmp_path / "mkdocs.yml").write_text(config)
    for text, bad in (
        ("[a](index.md)", False),
        ("[a](none.md)", True),
        ("[a](index.md#none)", True),
    ):
        (docs / "index.md").write_text(f"# Page\n\n{text}\n")
        done = finished([*BUILD, "--site-dir", str(tmp_path / "out")], cwd=tmp_path)
        assert bool(done.returncode) == bad, done.stdout + done.stderr
