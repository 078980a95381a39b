"""What ``functools.lru_cache`` keeps: state that can be read and cleared, and not put back."""

from __future__ import annotations

import functools
import gc
from typing import Any

from samba.tracer.torch_internals import FakeTensor

__all__ = ["CACHED", "cached_results", "clear_if_traced"]

CACHED = type(functools.lru_cache(maxsize=1)(repr))
"""The class of functions that keep their results."""


def cached_results(function: Any) -> list[Any]:
    """The results that such a function keeps; with a limit, the arguments of each as well.

    Args:
        function: The function.
    """
    own = vars(function)
    held = [part for part in gc.get_referents(function) if part is not own]
    if function.cache_info().maxsize is None:
        return [result for part in held if isinstance(part, dict) for result in part.values()]
    apart = (function.__wrapped__, type(function))
    return [
        part
        for part in held
        if not isinstance(part, type)
        and type(part) is not object  # a mark between arguments
        and all(part is not other for other in apart)
        and not (isinstance(part, dict) and _is_cache(part))
    ]


def _is_cache(part: dict[Any, Any]) -> bool:
    return all(type(link).__name__ == "_lru_list_elem" for link in part.values())


def clear_if_traced(function: Any) -> None:
    """Forget the results if one of them is a tensor of a trace, which no other call can use.

    Args:
        function: The function.
    """
    if any(_is_traced(result) for result in cached_results(function)):
        function.cache_clear()


def _is_traced(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_traced, value))
    if isinstance(value, dict):
        return any(map(_is_traced, value.values()))
    return isinstance(value, FakeTensor)
