"""What is installed: bounds of versions, and that the packages are typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from emulator.versions import JAX, TORCH, UnsupportedVersion, Versions
from pef_schema.errors import SambaError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def import_fails(code, *paths):
    """Run code in a fresh process and return the last line it prints."""
    path = os.pathsep.join(map(str, (*paths, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
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
        "emulator.versions.UnsupportedVersion: torch: found version 2.99.0+cpu, wanted "
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
