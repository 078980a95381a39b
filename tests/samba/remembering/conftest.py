"""Every test here is a script with a file: pytest's own main module may have none."""

from __future__ import annotations

import sys
import types

import pytest


@pytest.fixture(autouse=True)
def a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = __file__
    monkeypatch.setitem(sys.modules, "__main__", main)
    # What the suite puts into torch for its own speed is no script's.
    monkeypatch.delitem(sys.modules, "tests.speed", raising=False)
