"""Cases that are a user's PEF, by name: read where neither jax nor a program may be loaded."""

from __future__ import annotations

from pathlib import Path

__all__ = ["case_of", "path_of"]

_PREFIX = "pef:"


def case_of(path: Path) -> str:
    """The name of the case that is a PEF.

    Args:
        path: The PEF; made absolute, since workers run in folders of their own.

    Example:
        >>> case_of(Path("/home/me/net.pef"))
        'pef:/home/me/net.pef'
    """
    return f"{_PREFIX}{path.absolute()}"


def path_of(case: str) -> str | None:
    """The PEF that a case is, None for a case of the bench's own.

    Args:
        case: Name of the case.

    Example:
        >>> path_of("pef:/home/me/net.pef"), path_of("lenet")
        ('/home/me/net.pef', None)
    """
    return case.removeprefix(_PREFIX) if case.startswith(_PREFIX) else None
