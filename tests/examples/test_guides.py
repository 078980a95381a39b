"""The README and the guides as a reader follows them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.pages import page
from tests.processes import finished

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_guide_to_several_graphs_decodes_as_torch(tmp_path):
    text = page("evaluation.md", "Several graphs in one PEF")
    (script,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "decode.py").write_text(script)
    printed = ""
    for command in re.findall(r"`python\s(decode\.py [^`]*)`", text):
        done = finished(
            [sys.executable, *command.split()],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    (tokens,) = re.findall(r"decoded \[\[(.*)\]\]", printed)
    assert tokens.startswith("3, 1, 4, ") and len(tokens.split(",")) == 8
    assert "torch agrees: True" in printed


@pytest.mark.slow
def test_the_guide_to_bagua_trains_two_replicas(tmp_path):
    text = page("bagua.md")
    (script,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "net.py").write_text(script)
    commands = re.findall(r"`python\s((?:net\.py|-m samba) [^`]*)`", text)
    assert len(commands) == 2
    printed = ""
    for command in commands:
        done = finished(
            [sys.executable, *command.split()],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            seconds=240,
        )
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    rows = re.findall(r"Loss: (\S+) weights: (\S+)", printed)
    assert len(rows) == 2
    assert rows[0][1] == rows[1][1]
    assert all(float(loss) < 0.05 for loss, _ in rows)


# -- the README ------------------------------------------------------------------------


README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_script_learns(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "net.py").write_text(script)
    printed = ""
    for command in re.findall(r"`python (net\.py [^`]*)`", README):
        done = finished(
            [sys.executable, *command.split()],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
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
