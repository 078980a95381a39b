"""What is installed: bounds of versions, and that the packages are typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from packaging.requirements import Requirement

from emulator.versions import JAX, TORCH, UnsupportedVersion, Versions
from pef_schema.errors import SambaError
from tests import warm
from tools import install
from tools.requirements import locked, name_of, requirements

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def import_fails(code, *paths):
    """Run code in a process that has torch alone and return the last line it prints."""
    path = os.pathsep.join(map(str, (*paths, ROOT)))
    done = warm.finished(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, server=warm.TORCH
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("versions", [JAX, TORCH], ids=lambda v: v.package)
def test_the_requirement_says_the_same(versions):
    assert versions.requirement in PROJECT["project"]["dependencies"]


def test_jaxlib_goes_with_jax():
    assert JAX.requirement.replace("jax", "jaxlib") in PROJECT["project"]["dependencies"]


def test_a_range_ends_before_the_version_that_was_not_tried():
    versions = Versions(package="x", least=(1, 9), below=(1, 11), because="y")
    for good in ("1.9", "1.9.0+cpu", "1.10.7", "1.10.0a0+git12"):
        versions.check(good)
    for bad in ("1.8.9", "1.11.0", "1.11.0a0", "2.9", "0.10", "unknown"):
        with pytest.raises(UnsupportedVersion) as raised:
            versions.check(bad)
        assert (raised.value.package, raised.value.found) == ("x", bad)
        assert raised.value.wanted == "x>=1.9,<1.11"
    assert issubclass(UnsupportedVersion, SambaError) and issubclass(
        UnsupportedVersion, ImportError
    )


def test_another_torch_is_told_at_import():
    said = import_fails("import torch; torch.__version__ = '2.99.0+cpu'; import sambaflow.samba")
    assert said == (
        "emulator.versions.UnsupportedVersion: torch: found version 2.99.0+cpu, expected "
        "torch>=2.13,<2.14: tensors and tracing use private names of it, which differ from "
        "version to version. Install one of these: pip install 'torch>=2.13,<2.14'."
    )


@pytest.mark.parametrize("package", ["emulator", "emulator.device", "samba"])
def test_another_jax_is_told_at_import(tmp_path, package):
    info = tmp_path / "jax-0.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.99.0\n")
    said = import_fails(f"import {package}", tmp_path)
    assert said.startswith("emulator.versions.UnsupportedVersion: jax: found version 0.99.0, ")
    assert said.endswith("pip install 'jax>=0.10,<0.11'.")


def test_packages_are_typed_and_the_bench_is_not_installed():
    tools = PROJECT["tool"]["setuptools"]
    installed = [re.sub(r"\*$", "", name) for name in tools["packages"]["find"]["include"]]
    assert sorted(installed) == ["emulator", "pef_schema", "samba", "sambaflow"]
    for package in installed:
        assert "py.typed" in tools["package-data"][package]
        assert (ROOT / package / "py.typed").exists()
    assert "op_facts/ops.json" in tools["package-data"]["emulator"]


# -- what is installed from an index ---------------------------------------------

PIN = re.compile(r"==(?P<version>[^\s;]+)( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")


def test_every_entry_of_the_constraints_is_pinned_with_hashes():
    entries = locked()
    assert len(entries) > 60
    for name, entry in entries.items():
        assert PIN.fullmatch(entry[len(name) :]), entry
    assert list(entries) == sorted(entries)


@pytest.mark.parametrize("extra", ["dev", "lock", "examples"])
def test_what_is_required_is_in_the_constraints(extra):
    entries = locked()
    required = requirements(extra)
    assert len(required) == len(set(map(name_of, required)))
    for requirement in map(Requirement, required):
        found = PIN.fullmatch(entries[name_of(requirement.name)][len(requirement.name) :])
        assert found is not None
        assert requirement.specifier.contains(found["version"]), requirement


def test_the_libraries_of_a_gpu_are_those_of_jax_and_locked_with_it():
    """`pip install '.[cuda]'` takes jax's own extra; `make setup EXTRAS=cuda` the locked files."""
    (extra,) = map(Requirement, PROJECT["project"]["optional-dependencies"]["cuda"])
    assert (extra.name, extra.extras) == ("jax", {"cuda13"})
    assert extra.specifier == Requirement(JAX.requirement).specifier
    assert str(extra.marker) == 'sys_platform == "linux"'  # jax has its wheels for Linux only
    entries = locked()
    jax = entries["jax"].split(" ")[0].removeprefix("jax")
    for name in ("jax-cuda13-plugin", "jax-cuda13-pjrt"):
        assert entries[name].startswith(f"{name}{jax} ; sys_platform == 'linux' ")
    assert {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cuda-nvcc"} <= set(
        entries
    )


def test_what_installs_and_builds_is_pinned():
    assert {"pip", "setuptools"} <= set(locked())
    assert "setuptools>=68" in requirements("dev")  # it is built without isolation


def test_extras_bring_what_they_take_of_other_extras():
    told = {
        "build-system": {"requires": ["builder"]},
        "project": {
            "name": "Own.Name",
            "dependencies": ["a>=1"],
            "optional-dependencies": {
                "x": ["b", "own-name[y, z]"],
                "y": ["c[d]>=2; python_version > '3'"],
                "z": ["own_name[y]", "a>=1"],
                "other": ["e"],
            },
        },
    }
    assert requirements("x", told) == ["builder", "a>=1", "b", "c[d]>=2; python_version > '3'"]


@pytest.mark.parametrize("file", ["Makefile", "tools/try_wheel.sh"])
def test_nothing_is_installed_whose_hash_is_not_known(file):
    """Every use of pip or uv checks hashes, or brings this project without dependencies."""
    text = (ROOT / file).read_text().replace("\\\n", " ")
    use = r"^.*\bpip (?:--python \S+ )?(?:install|download|wheel)\b.*$"
    uses = re.findall(use, text, re.MULTILINE)
    checked = [use for use in uses if "--require-hashes --only-binary=:all:" in use]
    assert len(checked) == 1  # by a name; the uses of it name requirements with hashes
    own = [use for use in uses if use not in checked]
    assert own
    for use in own:
        assert "--no-deps" in use
        assert "--no-build-isolation" in use or "--no-index" in use
    assert len(re.findall(r"tools/install\.py\"? (dev|examples)", text)) == 1


def _run_with_fake_uv(monkeypatch: pytest.MonkeyPatch, listing: str) -> list[list[str]]:
    """What ``tools/install.py`` calls where pip has these settings."""
    calls: list[list[str]] = []

    def run(command: list[str], **keywords: object) -> CompletedProcess[str]:
        calls.append(command)
        if "config" in command:
            return CompletedProcess(command, 0, listing)
        calls.append(str(keywords["input"]).splitlines())
        return CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(install.shutil, "which", lambda *_, **__: "uv")
    assert install.main(["dev", "compiler"]) == 3
    return calls


def test_uv_checks_hashes_and_asks_the_indexes_of_pip(monkeypatch, tmp_path):
    """Every version and hash is a constraint; nothing is built. The index has what links lack."""
    settings = f"global.find-links='/no/wheels {tmp_path}'\nglobal.index-url='https://a'\n"
    settings += ":env:.index-url='https://b'\nglobal.extra-index-url='https://c\\nhttps://d'\n"
    _, linked, first, command, second = _run_with_fake_uv(monkeypatch, settings)
    assert linked == [*command, "--find-links", str(tmp_path)]
    assert command[:3] == ["uv", "pip", "install"]
    assert {"--no-build", "--verify-hashes"} <= set(command)
    assert command[command.index("-c") + 1] == str(ROOT / "constraints.txt")
    asked = [command[i + 1] for i, word in enumerate(command) if word.endswith("index-url")]
    assert asked == ["https://b", "https://c", "https://d"]
    assert first == second
    assert set(first) == {*requirements("dev"), *requirements("compiler")}


def test_without_uv_the_command_to_use_is_named(monkeypatch):
    monkeypatch.setattr(install.shutil, "which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="use `make setup`"):
        install.main(["dev"])


def test_workflows_install_by_make_and_the_script_only():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        assert not re.search(r"\b(pip|uv|pipx) (install|run|sync)", path.read_text())


def test_hashes_that_no_index_has_are_in_the_constraints():
    """They are of files that hosts have; pyproject.toml says of each what it is."""
    for pin, hashes in PROJECT["tool"]["constraints"]["more-hashes"].items():
        entry = locked()[name_of(pin)]
        assert entry.startswith(pin + " ")
        assert all(f"--hash={one}" in entry for one in hashes)
