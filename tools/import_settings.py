"""What pyproject.toml says of the import graph: its limits and the order of samba's layers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

LAYERED = "samba"
"""The package that is built in layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the figures may be at most.

    Attributes:
        rooms: Modules and folders at the top of the layered package.
        circle: Files in an import circle inside one folder.
        upward: Imports against the order of the layers.
        inner: Imports of the project's own modules inside functions.
    """

    rooms: int
    circle: int
    upward: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """An import that pyproject.toml exempts from the order of the layers.

    Attributes:
        importer: The module that imports.
        imported: The module it imports.
        line: The line of pyproject.toml.
        reason: Whether a comment on the line says why.
    """

    importer: str
    imported: str
    line: int
    reason: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The project's own packages, the limits and the order of the layers.

    Attributes:
        packages: The project's own packages.
        limits: What the figures may be.
        layers: Each room's place in the order of layers, counted from the top.
        closed: Places whose rooms may not import one another.
        exempt: Imports that are exempted from the order.
    """

    packages: tuple[str, ...]
    limits: Limits
    layers: Mapping[str, int]
    closed: frozenset[int]
    exempt: tuple[Exemption, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read pyproject.toml.

        Args:
            path: The file.

        Returns:
            What it says of imports.
        """
        text = path.read_text()
        tools = tomllib.loads(text)["tool"]
        linter: dict[str, Any] = tools["importlinter"]
        (contract,) = (c for c in linter["contracts"] if c["id"] == LAYERED)
        layers: list[str] = contract["layers"]
        return cls(
            packages=tuple(linter["root_packages"]),
            limits=Limits(**tools["import_graph"]),
            layers={
                f"{LAYERED}.{room.strip()}": place
                for place, layer in enumerate(layers)
                for room in re.split("[:|]", layer)
            },
            closed=frozenset(place for place, layer in enumerate(layers) if ":" not in layer),
            exempt=tuple(_exemptions(contract["ignore_imports"], text.splitlines())),
        )

    def room(self, module: str) -> str | None:
        """Return the room a module lies in.

        Args:
            module: A module of the layered package.

        Returns:
            The room: a module or package that has a place in the order of layers, or a package
            that is cut into several such rooms; None where the order does not name any.
        """
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            room = ".".join(parts[:end])
            if room in self.layers:
                return room
        return module if any(room.startswith(f"{module}.") for room in self.layers) else None

    def upward(self, importer: str, imported: str) -> bool:
        """Tell whether an import is against the order of the layers.

        Args:
            importer: A module.
            imported: The module it imports.

        Returns:
            Whether both have a room, and the room of the second is not below that of the first.
        """
        below, above = self.room(importer), self.room(imported)
        if below is None or above is None or below == above:
            return False
        # What is cut into rooms stands above them: it may import them and not be imported.
        at, of = self.layers.get(below, -1), self.layers.get(above, -1)
        return at > of or (at == of and at in self.closed)


def _exemptions(arrows: list[str], lines: list[str]) -> Iterator[Exemption]:
    """Yield the exemptions with their places in the file."""
    for arrow in arrows:
        line, text = next((i, text) for i, text in enumerate(lines, 1) if f'"{arrow}"' in text)
        importer, _, imported = arrow.partition(" -> ")
        reason = re.search(r'",?  # \S', text) is not None
        yield Exemption(importer=importer, imported=imported, line=line, reason=reason)
