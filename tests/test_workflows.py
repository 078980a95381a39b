"""The workflows call what there is: targets of the Makefile, scripts, options of the gate."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from bench.__main__ import _parser

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in (".github/workflows", "examples/workflows")
    for path in ROOT.glob(f"{folder}/*")
)


def steps(path):
    """The steps of all jobs of a workflow."""
    return [
        step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]
    ]


def commands(path):
    """Each command that a workflow runs, as words, with GitHub's expressions filled in."""
    for step in steps(path):
        if "run" in step:
            words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "x", step["run"]))
            while "=" in words[0]:
                del words[0]
            yield words


def test_there_are_workflows():
    assert [path.name for path in FILES] == ["ci.yml", "nightly.yml", "section_times.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_have_a_version(path):
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", name) for name in used), used


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_are_there(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = list(commands(path))
    assert found
    for words in found:
        if words[0] == "make":
            assert words[1] in targets
        elif words[0].startswith("tools/"):
            assert os.access(ROOT / words[0], os.X_OK)
        else:
            assert words[:3] == [".venv/bin/python", "-m", "bench"]
            assert _parser().parse_args(words[3:]).command == "gate"


def test_every_python_is_tried():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    pythons = ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
