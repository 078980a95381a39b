"""Whose file a line is in."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

import samba
from samba.tracer.names import is_script_file, is_user_file

TORCH, OWN = Path(torch.__file__).parent, Path(samba.__file__).parent
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


@pytest.mark.parametrize("folder", [TORCH, OWN, LIBRARY])
def test_a_folder_beside_a_package_is_none_of_its_parts(folder: Path) -> None:
    assert not is_user_file(str(folder / "module.py"))
    assert is_user_file(str(folder.with_name(f"{folder.name}_own") / "module.py"))


def test_what_was_typed_in_is_in_no_file() -> None:
    assert not is_user_file("<stdin>")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_an_installed_package_is_no_script(folder: str) -> None:
    file = f"/usr/{folder}/transformers/modeling.py"
    assert is_user_file(file)
    assert not is_script_file(file)
    assert is_script_file("/home/somebody/modeling.py")
