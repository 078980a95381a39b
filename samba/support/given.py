"""What a script has given for an argument, checked when it is given: one error for each kind.

Keywords that a function does not have are refused as well, with the ones it has.
"""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from emulator.handler_errors import raise_error_of_handler
from pef_schema.errors import SambaError, quoted
from pef_schema.printable import some_of
from samba.errors import ArgumentError, ConversionError, described

_LISTED = 20
"""Keywords that a message lists; the error's ``found`` holds all of them."""


def flag_of(value: Any, where: str) -> bool:
    """A switch: ``True`` or ``False``, also as numpy and as whole numbers have them.

    A text is none: the text ``"False"`` would count as true.

    Args:
        value: What was given.
        where: The argument, for the error.

    Raises:
        ArgumentError: It is neither true nor false.

    Example:
        >>> flag_of(1, "f(x=...)"), flag_of(False, "f(x=...)")
        (True, False)
    """
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentError(where=where, found=described(value), wanted="True or False")


def text_of(value: Any, where: str, wanted: str = "a string") -> str:
    """A text, such as a name.

    Args:
        value: What was given.
        where: The argument, for the error.
        wanted: What would have been right.

    Raises:
        ArgumentError: It is none.

    Example:
        >>> text_of("x", "f(name=...)")
        'x'
    """
    if not isinstance(value, str):
        raise ArgumentError(where=where, found=described(value), wanted=wanted)
    return value


def whole_of(value: Any, where: str, least: int | None = None, wanted: str = "") -> int:
    """A whole number; numpy's integers count as whole numbers, and ``True`` does not.

    Args:
        value: What was given.
        where: The argument, for the error.
        least: The smallest allowed number; None for any.
        wanted: What would have been right; made of ``least`` if empty.

    Raises:
        ArgumentError: It is none, or too small.

    Example:
        >>> whole_of(3, "f(n=...)", least=1)
        3
    """
    number = None
    if not isinstance(value, (bool, np.bool_)):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    if number is None or (least is not None and number < least):
        wanted = wanted or f"a whole number{'' if least is None else f', {least} or more'}"
        raise ArgumentError(where=where, found=described(value), wanted=wanted)
    return number


def as_number(value: Any) -> float:
    """What a script has given for a number: a tensor or an array of one number counts as one.

    Args:
        value: What was given.

    Returns:
        The number; NaN for everything else, such as a text.

    Example:
        >>> as_number(np.float32(0.5)), as_number("0.5")
        (0.5, nan)
    """
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return math.nan
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "biufO":
        return math.nan
    try:
        return float(value)
    except Exception as error:  # of torch, numpy, decimal: too large, no number, no single one
        raise_error_of_handler(error)
        return math.nan


def sizes_of(value: Any, where: str) -> tuple[int, ...]:
    """The sizes of a tensor.

    Args:
        value: What was given: whole numbers, 0 or more, in anything that can be iterated.
        where: The argument, for the error.

    Raises:
        ArgumentError: It is no such thing, or no tensor is as large.

    Example:
        >>> sizes_of([2, 3], "f(shape=...)")
        (2, 3)
    """
    wanted = "a tuple of sizes: whole numbers, 0 or more"
    try:
        items = tuple(value)
        sizes = tuple(operator.index(item) for item in items)
    except TypeError:
        raise ArgumentError(where=where, found=described(value), wanted=wanted) from None
    elements = 1
    for size in sizes:
        elements *= max(size, 1)
    if any(isinstance(item, bool) or item < 0 for item in items) or isinstance(value, bytes):
        raise ArgumentError(where=where, found=described(items), wanted=wanted)
    if elements >= 1 << 63:
        raise ArgumentError(
            where=where, found=described(items), wanted="a tensor of fewer than 2^63 elements"
        )
    return sizes


def callable_of(value: Any, where: str, wanted: str = "a function") -> Any:
    """Something that can be called.

    Args:
        value: What was given.
        where: The argument, for the error.
        wanted: What would have been right.

    Raises:
        ConversionError: It cannot be called.
    """
    if not callable(value):
        raise ConversionError(where=where, found=described(value), wanted=wanted)
    return value


def mapping_of(value: Any, where: str, wanted: str) -> Mapping[Any, Any]:
    """A dict, or what is like one.

    Args:
        value: What was given.
        where: The argument, for the error.
        wanted: What would have been right.

    Raises:
        ArgumentError: It is none.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(where=where, found=described(value), wanted=wanted)
    return value


def names_of(value: Any, where: str) -> list[str]:
    """Names in a list or a tuple; one name alone counts as a list.

    Args:
        value: What was given.
        where: The argument, for the error.

    Raises:
        ArgumentError: It is not a list, or something in it is not a name.

    Example:
        >>> names_of("x", "f(names)"), names_of(("x", "y"), "f(names)")
        (['x'], ['x', 'y'])
    """
    if isinstance(value, str):
        return [value]
    try:
        items = list(value)
    except TypeError:
        items = None
    if items is None or not all(isinstance(item, str) for item in items):
        raise ArgumentError(where=where, found=described(value), wanted="a list of names")
    return items


def path_of(value: Any, where: str) -> str:
    """A path as a string.

    Args:
        value: What was given: a text or a path.
        where: The argument, for the error.

    Raises:
        ArgumentError: It is neither.

    Example:
        >>> path_of("out/a.pef", "f(pef=...)")
        'out/a.pef'
    """
    if not isinstance(value, (str, os.PathLike)):
        raise ArgumentError(where=where, found=described(value), wanted="a path")
    return os.fsdecode(value)


class UnknownKeyword(SambaError, TypeError):
    """A function was given a keyword it does not have.

    Attributes:
        function: Name of the function.
        found: The keywords it does not have.
        wanted: Those it has.
    """

    def __init__(self, *, function: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        self.function, self.found, self.wanted = function, tuple(found), tuple(wanted)
        near = {f: difflib.get_close_matches(f, wanted, 1) for f in map(quoted, found[:_LISTED])}
        guesses = ", ".join(f"{close[0]} for {f}" for f, close in near.items() if close)
        advice = f"Did you mean {guesses}?" if guesses else f"It has {', '.join(wanted)}."
        super().__init__(
            f"{function}() got an unexpected keyword argument: {some_of(found, _LISTED, quoted)}. "
            f"{advice}"
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
    names = list(unknown)
    if names:
        takes = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(function).parameters.values()
        keywords = [p.name for p in parameters if p.kind in takes and p.name != "self"]
        raise UnknownKeyword(function=name, found=names, wanted=keywords)
