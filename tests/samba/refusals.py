"""Checks of errors: their texts, and that a refused call leaves everything as it was."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from torch import nn

import samba
from samba.errors import SambaError


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content; folders have none."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b""
        for p in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def refused(folder: Path, *parts: str, kind: type[SambaError] = SambaError):
    """The body raises an error whose text has these parts; files and session stay as they were."""
    before, loaded = files(folder), samba.session._slot.loaded
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"
    assert files(folder) == before
    assert samba.session._slot.loaded is loaded
    assert samba.session.tracing is False


def line_of(file: str, marker: str) -> str:
    """``file:line`` of the line of a file that ends with a marker."""
    lines = Path(file).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return f"{file}:{number}"


def compile_into(folder: Path, model: nn.Module, inputs, optimizer=None, **keywords) -> str:
    config = {"output_folder": str(folder), "pef_name": "mlp", **keywords.pop("config", {})}
    return samba.session.compile(model, inputs, optimizer, config_dict=config, **keywords)
