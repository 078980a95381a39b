"""What code names, and whether it may walk a set of texts, whose order each process has anew."""

from __future__ import annotations

import dis
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Walks",
    "has_an_order",
    "imports_in",
    "makes_sets",
    "names_in",
    "sets_keep_order",
    "walks_of",
]

_ASKS = frozenset({"sorted", "len", "bool", "min", "max", "any", "all", "isinstance"})
"""Built-in functions whose result does not depend on the order of a set."""
_ASKING_METHODS = frozenset(
    {
        *("add", "discard", "remove", "clear", "issubset", "issuperset", "isdisjoint"),
        *("update", "difference_update", "intersection_update", "__contains__", "__len__"),
    }
)
_MAKES = frozenset({"set", "frozenset"})
_LISTS = frozenset({"list", "tuple", "iter", "enumerate", "sum", "next", "map", "zip", "reversed"})
_SET_OPCODES = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_SETS = frozenset(dis.opmap[name] for name in _SET_OPCODES)
_PASSED_OVER = frozenset({"PRECALL", "CACHE", "NOP", "EXTENDED_ARG", "PUSH_NULL"})
_LOADS = frozenset({"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})


def names_in(code: types.CodeType) -> frozenset[str]:
    """Names and texts in code: ``getattr(config, "depth")`` names an attribute, too.

    Args:
        code: The code of a function, with that of the functions in it.

    Example:
        >>> sorted(names_in((lambda x: x.abs() + getattr(x, "real")).__code__))
        ['abs', 'getattr', 'real']
    """
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return frozenset(names)


def imports_in(code: types.CodeType, variables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Modules that a function imports itself, with what it takes from them.

    Args:
        code: Its code.
        variables: Its global variables, which say what package it is in.

    Yields:
        Names of loaded modules, each with the name of a variable; without one for a whole module.

    Example:
        >>> def loads():
        ...     from os.path import join
        >>> list(imports_in(loads.__code__, {}))
        [('os.path', 'join')]
    """
    dynamic = not _IMPORTERS.isdisjoint(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports_in(constant, variables)
        elif dynamic and isinstance(constant, str) and constant in sys.modules:
            yield constant, ""
    if _IMPORT not in code.co_code[::2]:
        return
    steps = [step for step in dis.get_instructions(code) if step.opname not in _PASSED_OVER]
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            name = _absolute(step.argval, steps[place - 2].argval, variables)
            taken = steps[place - 1].argval or ("",)
            for each in taken:
                if f"{name}.{each}" in sys.modules:
                    yield f"{name}.{each}", ""
                elif name in sys.modules:
                    yield name, "" if each == "*" else each


_IMPORT = dis.opmap["IMPORT_NAME"]
_IMPORTERS = frozenset({"import_module", "__import__"})


def _absolute(name: str, level: Any, variables: Mapping[str, Any]) -> str:
    """The name of a module that is imported by so many dots."""
    package = str(variables.get("__package__") or "")
    if not isinstance(level, int) or level == 0:
        return name
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


def sets_keep_order() -> bool:
    """Whether sets of texts have the same order in each process, as ``PYTHONHASHSEED`` can say."""
    return os.environ.get("PYTHONHASHSEED", "random") not in ("", "random")


def has_an_order(values: Iterable[Any]) -> bool:
    """Whether a set of these has the same order in each process: of numbers, or of at most one.

    Example:
        >>> has_an_order({1, 2}), has_an_order({"a", "b"}), has_an_order({"a"})
        (True, False, True)
    """
    listed = list(values)
    return len(listed) < 2 or all(type(value) in (int, float, bool) for value in listed)


def makes_sets(code: types.CodeType) -> bool:
    """Whether code may make sets: then it is worth to look closer."""
    return (
        not _MAKES.isdisjoint(code.co_names)
        or not _SETS.isdisjoint(code.co_code[::2])
        or any(
            makes_sets(constant)
            if isinstance(constant, types.CodeType)
            else type(constant) is frozenset
            for constant in code.co_consts
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """What code does with sets, as far as its instructions show.

    Args:
        names: Names that it loads for something else than to ask for a member, a length or the
            like: it may walk what they name.
        makes: Whether it walks a set that it has just made.
        place: The name of the function.
    """

    names: frozenset[str]
    makes: bool
    place: str


def walks_of(code: types.CodeType) -> Walks:
    """What code does with sets.

    Args:
        code: The code of a function, with that of the functions in it.

    Example:
        >>> def asks(x, self): return x in self.seen, sorted(self.kept)
        >>> def walks(self): return [name for name in self.seen]
        >>> sorted(walks_of(asks.__code__).names), sorted(walks_of(walks.__code__).names)
        (['sorted'], ['seen'])
        >>> def makes(names): return list(set(names))
        >>> walks_of(makes.__code__).makes
        True
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _PASSED_OVER]
    starts = {
        start: step.argval
        for step in steps
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and (start := _start(step)) is not None
    }
    names: set[str] = set()
    makes = False
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname in _LOADS and not _asks(after, starts):
            names.add(str(step.argval))
        if _is_made(step, starts) and _is_walked(after, starts):
            makes = True
        if (
            isinstance(step.argval, str)
            and step.opname == "LOAD_CONST"
            and "getattr" in code.co_names
        ):
            names.add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = walks_of(constant)
            names |= inner.names
            makes = makes or inner.makes
    return Walks(names=frozenset(names), makes=makes, place=code.co_qualname)


def _start(step: dis.Instruction) -> tuple[int, int] | None:
    """Where in the source an expression starts; None if Python was told not to keep that."""
    at = step.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return None
    return at.lineno, at.col_offset


def _callee(step: dis.Instruction, starts: Mapping[tuple[int, int], Any]) -> str:
    """The global name that a call calls; empty if it is no call of one."""
    start = _start(step)
    if not step.opname.startswith("CALL") or start is None:
        return ""
    return str(starts.get(start, ""))


def _asks(after: dis.Instruction | None, starts: Mapping[tuple[int, int], Any]) -> bool:
    if after is None:
        return False
    if after.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return after.argval in _ASKING_METHODS
    return after.opname == "CONTAINS_OP" or _callee(after, starts) in _ASKS


def _is_made(step: dis.Instruction, starts: Mapping[tuple[int, int], Any]) -> bool:
    if step.opname == "LOAD_CONST":
        return isinstance(step.argval, frozenset) and not has_an_order(step.argval)
    return step.opname in _SET_OPCODES or _callee(step, starts) in _MAKES


def _is_walked(after: dis.Instruction | None, starts: Mapping[tuple[int, int], Any]) -> bool:
    if after is None:
        return False
    return after.opname == "GET_ITER" or _callee(after, starts) in _LISTS
