"""Write the table of rooms in docs/architecture.md from the docstrings of the packages.

``python tools/write_rooms.py`` writes it; a test compares.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
TOPS = ("samba", "pef_schema", "emulator")
_PAGE_NAME = re.compile(r", see docs/\w+\.md")
_TABLE = re.compile(r"(?s)(<!-- rooms -->\n).*?(<!-- end of rooms -->)")


def table() -> str:
    """The table: a row for each package, with the first paragraph of its docstring."""
    rows = ["| package | contents |", "|---|---|"]
    for top in TOPS:
        for folder in (ROOT / top, *sorted((ROOT / top).iterdir())):
            source = folder / "__init__.py"
            if folder.name.startswith("_") or not source.exists():
                continue
            said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
            words = said.partition("\n\n")[0].replace("\n", " ").replace("``", "`")
            words = _PAGE_NAME.sub("", words)
            rows.append(f"| `{folder.relative_to(ROOT)}/` | {words.replace('``', '`')} |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """The page's text with the table of now."""
    return _TABLE.sub(lambda found: found[1] + table() + found[2], text)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
