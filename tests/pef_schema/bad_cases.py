"""The collection of broken PEFs: one per rule, each with the exact error it must raise.

``python -m tests.pef_schema.bad_cases`` writes those that ``tests/bad`` lacks. Files that are
there stay as they are: they were broken for the format version of their day, and must stay refused.
"""

from __future__ import annotations

from pathlib import Path

from tests.pef_schema import bad_bytes, bad_programs, bad_sections, bad_sizes, bad_steps
from tests.pef_schema.cases import CASES

FOLDER = Path(__file__).parent.parent / "bad"
SOURCES = (bad_bytes, bad_programs, bad_sections, bad_sizes, bad_steps)
"""Modules that fill the table when they are imported."""


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        path = FOLDER / f"{name}.pef"
        if not path.exists():
            path.write_bytes(case.make())
            print(f"written {path.name}")


if __name__ == "__main__":
    main()
