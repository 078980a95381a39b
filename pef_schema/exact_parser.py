"""A parser of command lines that takes options by their whole names."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["ExactParser"]


class ExactParser(argparse.ArgumentParser):
    """A parser that takes no part of an option's name for it: a later option might begin so, too.

    The parsers of its commands are of this class as well.

    Args:
        settings: Those of ``argparse.ArgumentParser``.

    Example:
        >>> parser = ExactParser(prog="x", exit_on_error=False)
        >>> _ = parser.add_argument("--graph")
        >>> parser.parse_known_args(["--gra", "y"])[1]
        ['--gra', 'y']
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
