"""The recipes: a decorator that collects them, and what each may say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.recipes.sides import Side

RECIPES: dict[str, Recipe] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe and how it ends on the device.

    Args:
        cook: The script.
        tells: Deviations that are told; the numbers are compared all the same unless
            ``differs`` is true.
        refused: Deviation of the error that refuses it on the device; empty if it runs.
        differs: Whether numbers are not those of torch, for the reason that is told.
    """

    cook: Callable[[Side], None]
    tells: frozenset[str] = field(default_factory=frozenset)
    refused: str = ""
    differs: bool = False


def recipe(
    *, tells: Sequence[str] = (), refused: str = "", differs: bool = False
) -> Callable[[Callable[[Side], None]], Callable[[Side], None]]:
    """Collect a function as a recipe under its name, which may be taken once.

    Args:
        tells: Names of the deviations that the device tells.
        refused: Name of the deviation that refuses it.
        differs: Whether the numbers differ, as told.
    """

    def add(cook: Callable[[Side], None]) -> Callable[[Side], None]:
        name = cook.__name__
        if name in RECIPES:
            raise ValueError(f"recipe {name} stands twice")
        RECIPES[name] = Recipe(cook=cook, tells=frozenset(tells), refused=refused, differs=differs)
        return cook

    return add
