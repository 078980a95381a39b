"""What is to be installed, from ``pyproject.toml`` and ``constraints.txt``.

    tools/requirements.py pip uv   packages with their versions and hashes, for pip

What checks hashes takes packages of an index only, not this project with its extras; so its
requirements are installed first (``tools/install.py``), and it then without any.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"


def name_of(requirement: str) -> str:
    """The package of a requirement, as indexes write it.

    Example:
        >>> name_of("Ml_Dtypes>=0.6; python_version > '3'")
        'ml-dtypes'
    """
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def requirements(extra: str, project: dict[str, Any] | None = None) -> list[str]:
    """The requirements of this project with an extra, and those of building it.

    Args:
        extra: The extra; what it takes of other extras is among them.
        project: ``pyproject.toml`` as read; the file of this tree if None.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text()) if project is None else project
    extras, own = project["project"]["optional-dependencies"], project["project"]["name"]
    needs = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    todo = [extra]
    for name in todo:
        for requirement in extras[name]:
            if name_of(requirement) == name_of(own):
                inside = requirement[requirement.index("[") + 1 : requirement.index("]")]
                todo += [part.strip() for part in inside.split(",")]
            else:
                needs.append(requirement)
    return list(dict.fromkeys(needs))


def locked(text: str | None = None) -> dict[str, str]:
    """The entries of the constraints, each with its hashes, by package.

    Args:
        text: The constraints; those of this tree if None.
    """
    text = LOCK.read_text() if text is None else text
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = re.split(r"\n(?=\S)", lines.strip())
    return {name_of(entry): entry for entry in entries}


def main(names: list[str]) -> None:
    """Print the entries of packages.

    Args:
        names: The packages.
    """
    entries = locked()
    print("\n".join(entries[name_of(name)] for name in names))


if __name__ == "__main__":
    main(sys.argv[1:])
