"""The README and the guides as a reader follows them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.pages import page
from tests.warm import finished, for_children

ROOT = Path(__file__).parents[2]


def followed(text: str, script: str, commands: str, folder: Path) -> list[str]:
    """Write the only script of a text, run the commands that a pattern finds: what each prints."""
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (folder / script).write_text(code)
    printed: list[str] = []
    for command in re.findall(commands, text):
        done = finished(
            [sys.executable, *command.split()],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | for_children(),
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    return printed


@pytest.mark.slow
def test_the_guide_to_several_graphs_decodes_as_torch(tmp_path):
    text = page("evaluation.md", "Several graphs in one PEF")
    printed = "".join(followed(text, "decode.py", r"`python\s(decode\.py [^`]*)`", tmp_path))
    (tokens,) = re.findall(r"decoded \[\[(.*)\]\]", printed)
    assert tokens.startswith("3, 1, 4, ") and len(tokens.split(",")) == 8
    assert "torch agrees: True" in printed


@pytest.mark.slow
def test_the_guide_to_bagua_trains_two_replicas(tmp_path):
    commands = r"`python\s((?:net\.py|-m samba) [^`]*)`"
    _, printed = followed(page("bagua.md"), "net.py", commands, tmp_path)
    rows = re.findall(r"Loss: (\S+) weights: (\S+)", printed)
    assert len(rows) == 2
    assert rows[0][1] == rows[1][1]
    assert all(float(loss) < 0.05 for loss, _ in rows)


# -- the README ------------------------------------------------------------------------


README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_script_learns(tmp_path):
    printed = "".join(followed(README, "net.py", r"`python (net\.py [^`]*)`", tmp_path))
    (loss,) = re.findall(r"Loss: (\S+)", printed)
    assert float(loss) < 1e-3


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "docs/evaluation.md",
        "docs/bagua.md",
        "docs/data_parallel.md",
        "docs/api_coverage.md",
    ],
)
def test_links(page):
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert not missing


def test_it_starts_with_the_two_commands():
    commands = re.findall(r"^(make \w+)", README, flags=re.MULTILINE)
    assert commands == ["make demo", "make test"]
    assert README.index("make demo") < 100
