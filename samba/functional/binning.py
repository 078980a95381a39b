"""Binning for mixtures of experts: a name without a documented meaning."""

from __future__ import annotations

from typing import Any, NoReturn

from pef_schema.errors import SambaError

__all__ = ["UndocumentedFunction", "groupby"]


class UndocumentedFunction(SambaError, RuntimeError):
    """A function whose results are documented nowhere, so that none is given.

    Args:
        name: The function.
        instead: What to do.
    """

    deviation = "undocumented-function"

    def __init__(self, *, name: str, instead: str) -> None:
        self.name = name
        super().__init__(
            f"{name}: its result is documented nowhere, so the emulator refuses it rather than "
            f"return a wrong one. {instead}"
        )


def groupby(tensor: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuses: how tokens are put into bins is documented nowhere.

    Raises:
        UndocumentedFunction: Always.
    """
    raise UndocumentedFunction(
        name="samba.groupby",
        instead="Sort and count with torch.sort, torch.cumsum and samba.functional.sn_scatter.",
    )
