"""What a notebook shows of a program. Who can draw one says so here: this package has no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Drawable", "Drawing", "drawn", "provide_drawing"]


class Drawing(Protocol):
    """What draws a program."""

    def __call__(self, program: Any, rows: Sequence[tuple[str, str]], /) -> str:
        """HTML of a program.

        Args:
            program: A ``Program``, whose module imports this one.
            rows: What else there is to say: a name and a text each.
        """
        ...


_provided: list[Drawing] = []


def provide_drawing(drawing: Drawing) -> None:
    """Set what draws programs from now on.

    Args:
        drawing: What draws them.
    """
    _provided[:] = [drawing]


def drawn(program: Any, rows: Sequence[tuple[str, str]] = ()) -> str | None:
    """HTML of a program; None where nobody draws any.

    Args:
        program: The program.
        rows: What else there is to say: a name and a text each.
    """
    return _provided[0](program, rows) if _provided else None


class Drawable:
    """A program that notebooks draw."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None for the text, where nobody draws programs."""
        return drawn(self)
