"""One case: ``python -m tests.pef_schema.fuzz rows:17``."""

from __future__ import annotations

import sys

from tests.fuzz.one import try_one

if __name__ == "__main__":
    sys.exit(try_one("reading", "python -m tests.pef_schema.fuzz"))
