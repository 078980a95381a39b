"""Write ``docs/api_coverage.md``: ``python -m tests.api``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.api.covers import found
from tests.api.names import PAGES

PAGE = Path(__file__).parents[2] / "docs" / "api_coverage.md"


def page(tests: dict[str, list[str]]) -> str:
    """The text of the page.

    Args:
        tests: Ids of tests by name.
    """
    missing = sum(name not in tests for names in PAGES.values() for name in names)
    total = sum(map(len, PAGES.values()))
    lines = [
        "# Documented names and their tests",
        "",
        "Made by `python -m tests.api` from the `@covers` decorators of the tests. A name in",
        "brackets is an argument.",
        "",
        f"{total - missing} of {total} names are covered.",
    ]
    for title, names in PAGES.items():
        lines += ["", f"## {title}", "", "| name | tests |", "|---|---|"]
        for name in names:
            ids = [f"[`{i.split('::', 1)[1]}`](../{i.split('::')[0]})" for i in tests.get(name, [])]
            lines.append(f"| `{name}` | {' '.join(ids) or '**missing**'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page and say how many names it covers."""
    text = page(found())
    PAGE.write_text(text, encoding="utf-8")
    print(next(line for line in text.splitlines() if line.endswith("are covered.")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
