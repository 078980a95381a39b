"""The script in the README runs as the README says, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import finished

ROOT = Path(__file__).parents[2]
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
