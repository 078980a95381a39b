"""Lines and files of each room, held to its budget.

    python -m tools.room_lines              print the figures; exit 1 if one is beyond its budget
    python -m tools.room_lines --update     write budgets: the lines of today and 3 percent more

A room is a folder of a package or of the tests, or the files that lie beside its folders. What
generators write does not count. The budgets stand in ``[tool.room_lines]`` of pyproject.toml.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOUSES = ("samba", "sambaflow", "pef_schema", "emulator", "bench", "tools", "examples", "tests")
GENERATED = "_generated"
SPARE = 1.03


def counted(root: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Count the hand-written Python of each room.

    Args:
        root: The folder that holds the packages.

    Returns:
        Lines and files by room, in order; rooms of a package without folders are the package.
    """
    lines, files = Counter[str](), Counter[str]()
    for house in HOUSES:
        for path in sorted((root / house).rglob("*.py")):
            inside = path.relative_to(root).parts
            if GENERATED in inside or path.stem.startswith(GENERATED):
                continue
            room = "/".join(inside[:2]) if len(inside) > 2 else house
            files[room] += 1
            lines[room] += path.read_text(encoding="utf-8").count("\n")
    return dict(sorted(lines.items())), dict(files)


def beyond(lines: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """Say which rooms have outgrown their budgets, or have none.

    Args:
        lines: Lines by room.
        budgets: The most that each may have.

    Returns:
        A message for each, empty if all is well.
    """
    messages = [
        f"{room} has {n:,} lines and no budget: run python -m tools.room_lines --update"
        for room, n in lines.items()
        if room not in budgets
    ]
    messages += [
        f"{room} has {n:,} lines, {n - budgets[room]:,} above its budget of {budgets[room]:,}: "
        "remove what is said twice, or raise the budget with its reason in the commit"
        for room, n in lines.items()
        if n > budgets.get(room, n)
    ]
    return messages + [f"{room} has a budget and no files" for room in budgets if room not in lines]


def with_budgets(text: str, lines: Mapping[str, int]) -> str:
    """Put budgets into the text of pyproject.toml.

    Args:
        text: The text.
        lines: Lines by room.

    Returns:
        The text with each room's lines and 3 percent more, in tens.
    """
    rows = "".join(f'"{room}" = {-int(-n * SPARE // 10) * 10}\n' for room, n in lines.items())
    table = f"[tool.room_lines]\n{rows}"
    return re.sub(r"\[tool\.room_lines\]\n(?:[^\[\n].*\n)*", lambda _: table, text)


def main() -> int:
    """Print the figures; return 1 if a room is beyond its budget."""
    parser = argparse.ArgumentParser(description="Print lines and files of each package.")
    parser.add_argument("--update", action="store_true", help="rewrite the budgets")
    update = parser.parse_args().update
    lines, files = counted(ROOT)
    settings = ROOT / "pyproject.toml"
    if update:
        text = settings.read_text(encoding="utf-8")
        settings.write_text(with_budgets(text, lines), encoding="utf-8")
    budgets = tomllib.loads(settings.read_text(encoding="utf-8"))["tool"]["room_lines"]
    for room, n in lines.items():
        print(f"{n:7,} lines {files[room]:4} files  {room}")
    source = [room for room in lines if not room.startswith(("tests", "examples"))]
    tests = [room for room in lines if room.startswith("tests")]
    for name, rooms in (("source", source), ("tests", tests)):
        total, count = sum(lines[r] for r in rooms), sum(files[r] for r in rooms)
        print(f"{total:7,} lines {count:4} files  {name}, together")
    problems = beyond(lines, budgets)
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
