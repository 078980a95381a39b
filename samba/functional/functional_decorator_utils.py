"""Marks on functions; they document and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["experimental"]

F = TypeVar("F", bound=Callable[..., Any])


def experimental(function: F) -> F:
    """Marks a function that the vendor had not finished testing; here it is as any other."""
    function.__dict__["experimental"] = True
    return function
