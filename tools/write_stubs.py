"""Write the stubs of ``sambaflow.samba``, or check that they fit.

    python tools/write_stubs.py            write sambaflow/samba/**.pyi
    python tools/write_stubs.py --check    exit 1 if they do not match the modules of samba

``sambaflow.samba`` turns into the package ``samba`` when it is imported, which type checkers
cannot know. A stub for each module that scripts import says that it has the names of the real one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = Path("sambaflow", "samba")
REAL = "samba"
INTERNAL = {"comparison", "compiler", "session", "support", "tensor", "tracer"}
"""Rooms whose modules no script imports; of the session, only the package itself."""


def stubs(root: Path) -> dict[Path, str]:
    """Return the text of each stub by its path.

    Args:
        root: The folder that holds the packages.

    Returns:
        A stub for each public module of the package, in order.
    """
    found: dict[Path, str] = {}
    for path in sorted((root / REAL).rglob("*.py")):
        inside = path.relative_to(root / REAL)
        package = path.name == "__init__.py"
        if inside.parts[0] in INTERNAL and inside != Path("session", "__init__.py"):
            continue
        if path.name == "__main__.py":
            continue
        module = ".".join((REAL, *(inside.parent if package else inside.with_suffix("")).parts))
        found[STUBS / inside.with_suffix(".pyi")] = f"from {module} import *\n"
    return found


def main() -> int:
    """Write or check the stubs; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the stubs of sambaflow.samba.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if they differ")
    check = parser.parse_args().check
    wanted = stubs(ROOT)
    there = {path.relative_to(ROOT): path.read_text() for path in (ROOT / STUBS).rglob("*.pyi")}
    if check:
        wrong = sorted(p for p in {*wanted, *there} if wanted.get(p) != there.get(p))
        for path in wrong:
            print(f"{path}:1: differs from the modules of {REAL}: run tools/write_stubs.py")
        return 1 if wrong else 0
    shutil.rmtree(ROOT / STUBS, ignore_errors=True)
    for path, text in wanted.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
