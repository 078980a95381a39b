"""The versions of jax and torch that the project works with, and the error for all others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from pef_schema.errors import SambaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """A range of minor versions; pyproject.toml says the same.

    Args:
        package: Name of the package as it is installed.
        least: The first version that works.
        below: The first later version that was not tested.
        because: Why later versions are excluded, for the error.
    """

    package: str
    least: tuple[int, int]
    below: tuple[int, int]
    because: str

    @property
    def requirement(self) -> str:
        """The range as pip reads it.

        Example:
            >>> JAX.requirement
            'jax>=0.10,<0.11'
        """
        (a, b), (c, d) = self.least, self.below
        return f"{self.package}>={a}.{b},<{c}.{d}"

    def check(self, found: str) -> None:
        """Check a version.

        Args:
            found: The version that is installed.

        Raises:
            UnsupportedVersion: If it is outside of the range.

        Example:
            >>> TORCH.check("2.13.0+cpu")
        """
        numbers = re.match(r"(\d+)\.(\d+)", found)
        if numbers is None or not self.least <= (int(numbers[1]), int(numbers[2])) < self.below:
            raise UnsupportedVersion(versions=self, found=found)


class UnsupportedVersion(SambaError, ImportError):
    """A package that the project builds on is installed in a version that it does not know.

    Args:
        versions: The range that works.
        found: The version that is installed.
    """

    def __init__(self, *, versions: Versions, found: str) -> None:
        self.package, self.found, self.wanted = versions.package, found, versions.requirement
        super().__init__(
            f"{self.package}: found version {found}, expected {self.wanted}: {versions.because}. "
            f"Install one of these: pip install '{self.wanted}'."
        )


JAX = Versions(
    package="jax",
    least=(0, 10),
    below=(0, 11),
    because="sections use parts of it that are experimental and differ from version to version",
)
TORCH = Versions(
    package="torch",
    least=(2, 13),
    below=(2, 14),
    because="tensors and tracing use private names of it, which differ from version to version",
)


def check_jax() -> None:
    """Check the jax that is installed, without loading it.

    Raises:
        UnsupportedVersion: If the version will not do. Where there is no jax, whoever imports it
            says so.
    """
    try:
        installed = version("jax")
    except PackageNotFoundError:
        return
    JAX.check(installed)
