"""Lowerings change in these tests, so executables must not be shared."""

from __future__ import annotations

import pytest

from emulator import device
from emulator.plans import plan


@pytest.fixture(autouse=True)
def own_executables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device compiles what it runs."""
    monkeypatch.setattr(device, "compile_plan", plan.compile_plan)
