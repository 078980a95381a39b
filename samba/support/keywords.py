"""Keywords that a function does not have, refused with the ones it has."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pef_schema.errors import SambaError, quoted

_LISTED = 20
"""Keywords that a message lists; the error's ``found`` holds all of them."""


class UnknownKeyword(SambaError, TypeError):
    """A function was given a keyword it does not have.

    Attributes:
        function: Name of the function.
        found: The keywords it does not have.
        wanted: Those it has.
    """

    def __init__(self, *, function: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        self.function, self.found, self.wanted = function, tuple(found), tuple(wanted)
        listed = [quoted(f) for f in found[:_LISTED]]
        near = {f: difflib.get_close_matches(f, wanted, 1) for f in listed}
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        guesses = ", ".join(f"{close[0]} for {f}" for f, close in near.items() if close)
        advice = f"Did you mean {guesses}?" if guesses else f"It has {', '.join(wanted)}."
        super().__init__(
            f"{function}() got an unexpected keyword argument: {', '.join(listed)}{more}. {advice}"
        )


def refuse_unknown(name: str, function: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse keywords that a function collected because no parameter takes them.

    Args:
        name: The function as users call it.
        function: The function, for the keywords it has.
        unknown: What it collected.

    Raises:
        UnknownKeyword: If there are any.
    """
    found = list(unknown)
    if found:
        takes = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(function).parameters.values()
        wanted = [p.name for p in parameters if p.kind in takes and p.name != "self"]
        raise UnknownKeyword(function=name, found=found, wanted=wanted)
