"""The workflows call what there is: targets of the Makefile, scripts, options of the gate."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from bench.__main__ import _parser
from tests.pages import page
from tests.processes import finished

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


def test_the_steps_of_the_page_on_time_import_this_project():
    """A folder beside a script would be imported in the place of a package of its name."""
    (steps_of_page,) = re.findall(r"```yaml\n(.*?)```", page("cost.md"), re.DOTALL)
    install, compiled, gate = yaml.safe_load(steps_of_page)
    (folder,) = re.findall(r"'\./([\w-]+)\[bench\]'", install["run"])
    assert not folder.isidentifier()
    assert gate["env"] == {"PYTHONPATH": folder}
    arguments = _parser().parse_args(shlex.split(gate["run"])[3:])
    assert (arguments.command, arguments.pef.name) == ("gate", "net.pef")
    assert "--pef-name=net" in compiled["run"]


def test_every_python_is_tried():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    pythons = ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]


MADE_BY_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON")


def make(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``make`` in a folder that has nothing but what it needs to begin."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tools", folder / "tools", dirs_exist_ok=True)
    # These tests run under `make test`, whose settings a make below it would take over.
    plain = {key: value for key, value in os.environ.items() if key not in MADE_BY_MAKE}
    return finished(
        ["make", *arguments],
        cwd=folder,
        env=plain | env,
    )


def test_make_help_lists_every_target(tmp_path):
    done = make(tmp_path, "help")
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert sorted(listed) == sorted(targets)


def test_make_setup_with_a_python_that_will_not_do_makes_nothing(tmp_path):
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(tmp_path, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    assert done.stdout == (
        f"PYTHON={old} will not do: it has to be a Python >= 3.11 with venv and ensurepip. "
        "Nothing was made.\n"
    )
    assert len(done.stderr.splitlines()) == 1  # make's own
    assert not (tmp_path / ".venv").exists()


def test_make_setup_replaces_an_environment_of_an_old_python(tmp_path):
    stale = tmp_path / ".venv" / "bin" / "python"
    stale.parent.mkdir(parents=True)
    stale.write_text("#!/bin/sh\nexit 1\n")
    stale.chmod(0o755)
    calls = tmp_path / "calls"
    new = tmp_path / "python3.11"
    new.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ntest "$1" != -m\n')  # its venv fails
    new.chmod(0o755)
    assert make(tmp_path, "setup", f"PYTHON={new}").returncode != 0
    assert "-m venv --clear --without-pip .venv" in calls.read_text()
    assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_make_setup_installs_nothing_that_has_another_hash(tmp_path):
    """The first that it installs is a pip, which stands for all: the same options hold for them."""
    wheel = tmp_path / "pip-99.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr(
            "pip-99.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pip\nVersion: 99\n"
        )
    pins = [f"{name}==99.0 \\\n    --hash=sha256:{'0' * 64}\n" for name in ("pip", "uv")]
    (tmp_path / "constraints.txt").write_text("".join(pins))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = make(tmp_path, "setup", f"PYTHON={sys.executable}", **offline)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in done.stderr
    assert not (tmp_path / ".venv" / ".installed").exists()
    assert not list(tmp_path.glob(".venv/lib/*/site-packages/pip-99*"))
