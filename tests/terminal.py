"""Text that would steer a terminal, and a look for it in what was printed."""

from __future__ import annotations

NAME = "\u202e\u2066\u061c\u200e\u200b\u2028\ufeff"
"""What a name in a PEF may hold: marks of direction, of no width, and separators."""

TEXT = NAME + "\x1b[31m\x1b]0;title\x07\r\x08\x00\x7f\x9b5m\ue000"
"""What any other text may hold besides: escape sequences, bells, carriage returns, C1."""


def foreign(text: str) -> set[str]:
    """Characters of printed text that are neither visible nor blanks, line ends or tabs."""
    return {c for c in text if not c.isprintable() and c not in "\n\t"}
