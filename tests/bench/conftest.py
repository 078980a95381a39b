"""A PEF and a kept base of it, for tests of the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.measurement import FULL
from bench.section_times import keep_base
from pef_schema import write_pef
from tests.samba.inspection.programs import chain

SECTIONS = ("a.relu", "b.sigmoid", "c.tanh")
TIMES = {"fwd_0": [2e-3, 1e-3, 3e-3], FULL: [5e-3]}
"""Seconds that sections took when the base was kept."""


@pytest.fixture
def pef(tmp_path: Path) -> Path:
    """A PEF of three sections."""
    path = tmp_path / "net.pef"
    write_pef(str(path), chain(SECTIONS))
    return path


@pytest.fixture
def base(tmp_path: Path, pef: Path) -> Path:
    """A kept base of it."""
    path = tmp_path / "base.json"
    keep_base(path, pef, TIMES)
    return path
