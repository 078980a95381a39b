"""Whether a value becomes a text that is only shown: printed, or logged."""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import logging
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["is_logging", "is_only_shown"]

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
    position = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return any(
        _encloses(call, position) and _shows(call.func, frame)
        for call in _calls(frame.f_code.co_filename)
    )


def is_logging(frame: FrameType | None) -> bool:
    """Whether Python's logging makes a text now, of which it reads nothing.

    Args:
        frame: Where a value becomes a text, or a part of one.
    """
    return frame is not None and frame.f_code.co_filename.startswith(_LOGGING)


@functools.lru_cache(maxsize=16)
def _calls(file: str) -> tuple[ast.Call, ...]:
    """Calls of a file whose result nobody uses."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return tuple([s.value for s in statements if isinstance(s.value, ast.Call)])


def _encloses(call: ast.Call, position: tuple[int | None, ...]) -> bool:
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return False
    begin, end = (call.lineno, call.col_offset), (call.end_lineno or 0, call.end_col_offset or 0)
    return begin <= (line, column) and (end_line, end_column) <= end


def _shows(function: ast.expr, frame: FrameType) -> bool:
    """Whether a function is ``print``, or a method of a logger."""
    if isinstance(function, ast.Attribute) and function.attr in _METHODS:
        holder = _value(function.value, frame)
        return holder is logging or isinstance(holder, _LOGGERS)
    return isinstance(function, ast.Name) and _value(function, frame) is builtins.print


def _value(name: ast.expr, frame: FrameType) -> Any:
    """What a name stands for, or an attribute of one: found without running any code."""
    if isinstance(name, ast.Attribute):
        holder = _value(name.value, frame)
        held = getattr(holder, "__dict__", {}) if holder is not None else {}
        return held.get(name.attr) if isinstance(held, dict) else None
    if not isinstance(name, ast.Name):
        return None
    for scope in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name.id in scope:
            return scope[name.id]
    return None
