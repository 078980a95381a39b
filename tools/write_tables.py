"""Write the tables of the documentation that the code decides.

``python tools/write_tables.py`` writes them; a test compares. The table of rooms in
docs/architecture.md comes from the docstrings of the packages, that of the device's optimizers in
docs/optimizers.md from their rows in ``pef_schema/optimizer_rules.py``.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if str(ROOT) not in sys.path:  # run as a script, the rows are those of this tree
    sys.path.insert(0, str(ROOT))

from pef_schema.optimizer_rules import OPTIMIZER_RULES, StateRule  # noqa: E402  # after the path

TOPS = ("samba", "pef_schema", "emulator")
_PAGE_NAME = re.compile(r", see docs/\w+\.md")


def rooms() -> str:
    """A row for each package, with the first paragraph of its docstring."""
    rows = ["| package | contents |", "|---|---|"]
    for top in TOPS:
        for folder in (ROOT / top, *sorted((ROOT / top).iterdir())):
            source = folder / "__init__.py"
            if folder.name.startswith("_") or not source.exists():
                continue
            said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
            words = said.partition("\n\n")[0].replace("\n", " ").replace("``", "`")
            words = _PAGE_NAME.sub("", words)
            rows.append(f"| `{folder.relative_to(ROOT)}/` | {words} |")
    return "\n".join(rows) + "\n"


def optimizers() -> str:
    """A row for each optimizer of the device."""
    rows = [
        "| class | changes at any step | settings of the PEF | states in a checkpoint | format |",
        "|---|---|---|---|---|",
    ]
    for rule in OPTIMIZER_RULES.values():
        name = rule.host.removeprefix("torch.optim.")
        options = ["betas" if n == "beta1" else n for n in rule.options if n != "beta2"]
        states = ["`step`"] if rule.counts else []
        states += [_state(state) for state in rule.states]
        cells = [f"`{name}`", _listed(rule.argins), _listed(options), ", ".join(states)]
        rows.append(f"| {' | '.join(cells)} | {rule.since} |")
    return "\n".join(rows) + "\n"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _state(state: StateRule) -> str:
    """A state by torch's name, and when it is there."""
    needed = state.option or state.idle_without
    return f"`{state.host_name or state.name}`" + (f" with `{needed}`" if needed else "")


TABLES = {"architecture.md": ("rooms", rooms), "optimizers.md": ("optimizers", optimizers)}
"""By page: the name of its table, which stands in comments around it, and what makes it."""


def with_table(page: str, text: str) -> str:
    """A page's text with its table of now.

    Args:
        page: The file's name, a key of :data:`TABLES`.
        text: Its text.
    """
    name, table = TABLES[page]
    there = re.compile(rf"(?s)(<!-- {name} -->\n).*?(<!-- end of {name} -->)")
    return there.sub(lambda match: match[1] + table() + match[2], text)


if __name__ == "__main__":
    for name in TABLES:
        path = ROOT / "docs" / name
        path.write_text(with_table(name, path.read_text(encoding="utf-8")), encoding="utf-8")
