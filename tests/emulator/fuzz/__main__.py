"""One case: ``python -m tests.emulator.fuzz rows:17``."""

from __future__ import annotations

import sys

from tests.fuzz.one import try_one

if __name__ == "__main__":
    sys.exit(try_one("run", "python -m tests.emulator.fuzz"))
