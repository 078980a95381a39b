"""Every test here is a script with a file: pytest's own main module may have none."""

from __future__ import annotations

import sys
import types

import pytest

from samba.remembering import code_origins


@pytest.fixture(autouse=True)
def a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = __file__
    monkeypatch.setitem(sys.modules, "__main__", main)
    # The suite's own modules are no script's: some hundred texts would be in each key.
    code_origins._own_folders()
    monkeypatch.setattr(code_origins, "_OWN", (*code_origins._OWN, "tests"))
