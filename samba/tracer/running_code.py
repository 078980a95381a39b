"""What Python code does at this moment, read from its bytecode and its source.

Torch tells a trace which function is called, but not what for: whether a value is tested by an
``if`` one side of which raises, is only printed, or is looped over. This module is the only one of
the tracer that reads bytecode; others ask it in terms of the source.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import itertools
import linecache
import logging
import sys
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Place = tuple[int, int, int, int]
"""Where an expression stands: its first line, its last line, its first column, its last column."""


# -- functions --------------------------------------------------------------------------


def _code_of(function: Any) -> CodeType | None:
    """The code of a function, method, partial or callable object; None if it is not Python's."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__code__", None)


def described(function: Any) -> str:
    """A function's name and the line on which it begins."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", "") or type(function).__qualname__
    line = line_of(function)
    return f"{name} ({line})" if line else name


def line_of(function: Any) -> str:
    """``file:line`` where a function begins; empty if it is not Python's."""
    code = _code_of(function)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def returns_nothing(function: Any) -> bool:
    """Whether the code of a function says that it can only return None.

    Example:
        >>> returns_nothing(lambda grad: None), returns_nothing(lambda grad: grad * 2)
        (True, False)
    """
    code = _code_of(function)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return False
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_VALUE" and not (
            before is not None and before.opname == "LOAD_CONST" and before.argval is None
        ):
            return False
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return False
        before = instruction
    return True


# -- what a frame does ------------------------------------------------------------------


def _instructions(frame: FrameType) -> tuple[list[dis.Instruction], int]:
    """The instructions of a frame, and which of them is running; -1 if that is not known."""
    code = [i for i in dis.get_instructions(frame.f_code) if i.opname != "EXTENDED_ARG"]
    return code, next((n for n, i in enumerate(code) if i.offset == frame.f_lasti), -1)


def starts_for_statement(frame: FrameType) -> bool:
    """Whether a frame is about to start a ``for`` statement over the iterator it asks for."""
    code, now = _instructions(frame)
    return [i.opname for i in code[now : now + 2]] == ["GET_ITER", "FOR_ITER"]


_BETWEEN = frozenset({"COPY", "NOP", "SWAP", "TO_BOOL", "CACHE"})
"""Instructions between the one that makes a value and the one that asks for its truth."""


class Asks(Enum):
    """How a frame asks for the truth of a value."""

    BRANCH = "a branch takes one of two ways"
    CALL = "a function is called that asks for it"
    COMPARISON = "items of two containers are compared"


def asked_value(frame: FrameType) -> tuple[Place | None, Asks]:
    """Where the value is made whose truth a frame is asking for.

    Args:
        frame: A frame that has called for the truth of an object.

    Returns:
        The place, None if the frame asks for another reason; and how it asks.
    """
    code, now = _instructions(frame)
    name, how = code[now].opname if now >= 0 else "", Asks.BRANCH
    if name.startswith(("CALL", "PRECALL")):
        how = Asks.CALL
    elif name == "COMPARE_OP":
        # From Python 3.13 on, a comparison asks for the truth of its own result.
        how = Asks.COMPARISON if sys.version_info < (3, 13) else Asks.BRANCH
    else:
        if "JUMP" not in name and name != "TO_BOOL":
            return None, how
        # A jump may have the place of the statement; what it tests was made right before.
        now -= 1
        while now >= 0 and code[now].opname in _BETWEEN:
            now -= 1
    at = None if now < 0 else code[now].positions
    if at is None or at.end_lineno is None:
        return None, how
    return (at.lineno or 0, at.end_lineno, at.col_offset or 0, at.end_col_offset or 0), how


def _place(frame: FrameType) -> tuple[int | None, int | None, int | None, int | None]:
    """Where the expression stands that a frame is waiting for."""
    # Where Python calls Python, the last instruction is one of its cache entries.
    return next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))


def call_at(frame: FrameType) -> tuple[ast.AST | None, ast.Call | None]:
    """The call that a frame is waiting for.

    Args:
        frame: A frame that has called something.

    Returns:
        The innermost function, or the module, in which the call is written, and the call; two times
        None if the source is not available.
    """
    _, line, _, column = _place(frame)
    tree = source_of(frame)
    if tree is None or line is None:
        return None, None
    function: ast.AST = tree
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and covers([node], line):
            function = node
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == (line, column):
            return function, node
    return None, None


# -- sources ----------------------------------------------------------------------------


def source_of(frame: FrameType) -> ast.Module | None:
    """The syntax tree of the file of a frame; None if its source is not available."""
    file = frame.f_code.co_filename
    return _tree(file, tuple(linecache.getlines(file, frame.f_globals)))


@lru_cache(maxsize=16)
def _tree(filename: str, lines: tuple[str, ...]) -> ast.Module | None:
    del filename
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def covers(body: Sequence[ast.stmt | ast.expr], line: int) -> bool:
    """Whether a line is one of some statements or expressions."""
    return any(s.lineno <= line <= (s.end_lineno or s.lineno) for s in body)


def encloses(outer: ast.expr, place: Place) -> bool:
    """Whether a place is within an expression."""
    line, end_line, column, end_column = place
    begin = outer.lineno, outer.col_offset
    end = outer.end_lineno or 0, outer.end_col_offset or 0
    return begin <= (line, column) and (end_line, end_column) <= end


def value_in(frame: FrameType, written: ast.expr) -> Any:
    """What a name stands for in a frame, or an attribute of one: found without running any code.

    Args:
        frame: The frame.
        written: The name or attribute.

    Returns:
        None for other expressions, and if that is not known.
    """
    if isinstance(written, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if written.id in names:
                return names[written.id]
    elif isinstance(written, ast.Attribute):
        holder = value_in(frame, written.value)
        return None if holder is None else inspect.getattr_static(holder, written.attr, None)
    return None


# -- texts that are only shown ----------------------------------------------------------

_LOGGING = str(Path(logging.__file__).parent)
_METHODS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
_LOGGERS = (logging.Logger, logging.LoggerAdapter)


def is_only_shown(frame: FrameType | None) -> bool:
    """Whether what runs now is a statement that prints or logs, and nothing else.

    Args:
        frame: Where a value becomes a text.
    """
    if frame is None or is_logging(frame):
        return frame is not None
    place, tree = _place(frame), source_of(frame)
    if tree is None or None in place:
        return False
    return any(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and encloses(node.value, place)  # pyright: ignore[reportArgumentType]  # no None, as asked
        and _shows(node.value.func, frame)
        for node in ast.walk(tree)
    )


def is_logging(frame: FrameType | None) -> bool:
    """Whether Python's logging formats a text now, which it does not read.

    Args:
        frame: Where a value becomes a text, or a part of one.
    """
    return frame is not None and frame.f_code.co_filename.startswith(_LOGGING)


def _shows(function: ast.expr, frame: FrameType) -> bool:
    """Whether a function is ``print``, or a method of a logger."""
    if isinstance(function, ast.Attribute) and function.attr in _METHODS:
        holder = value_in(frame, function.value)
        return holder is logging or isinstance(holder, _LOGGERS)
    return isinstance(function, ast.Name) and value_in(frame, function) is builtins.print
