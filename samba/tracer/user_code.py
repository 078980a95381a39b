"""The user's code: which files belong to it, which line of it runs or calls, and what it does."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import itertools
import linecache
import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

import torch

from pef_schema.program_facts import is_installed
from samba.support.marks import mark_of

# Each ends in a separator: torchvision lies beside torch, and is none of its parts.
_TORCH = os.path.join(Path(torch.__file__).parent, "")
_SAMBA = os.path.join(Path(__file__).parents[1], "")
_PACKAGES = (_TORCH, os.path.join(sysconfig.get_paths()["stdlib"], ""), _SAMBA)
_CALLING = (_SAMBA, f"{_TORCH}_tensor.py", f"{_TORCH}overrides.py")
_EXPORTER = os.path.join(_TORCH, "export", "")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def is_user_file(filename: str) -> bool:
    """Whether a file belongs to the user rather than to torch, Python or this package."""
    return not filename.startswith(_PACKAGES) and not filename.startswith("<")


@cache
def is_script_file(filename: str) -> bool:
    """Whether a file is the user's own, and not of an installed package."""
    return is_user_file(filename) and not is_installed(filename)


def source_line(stack_trace: str | None) -> str:
    """The innermost user line of a torch stack trace as ``file:line``; empty if there is none."""
    if not stack_trace:
        return ""
    frames = _FRAME.findall(stack_trace)
    for filename, line in reversed(frames):
        if is_user_file(filename):
            return f"{filename}:{line}"
    return ""


SOURCE = "samba_source"
"""Key under which an exported node holds its source line, where the stack would not tell it."""


def node_line(node: torch.fx.Node, otherwise: str = "") -> str:
    """The user's line of an exported node as ``file:line``.

    Args:
        node: The node.
        otherwise: What to say where no line of the user's is known.
    """
    line = mark_of(node, SOURCE)
    return line or source_line(node.meta.get("stack_trace")) or otherwise


def calling_line() -> str:
    """The user's line that is being executed, as ``file:line``; ``forward()`` if there is none."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{line}"
    return "forward()"


def called_by_user() -> bool:
    """Whether the user's code calls the function of torch that a mode sees, and not torch's own."""
    frame = asking_frame()
    return frame is not None and is_user_file(frame.f_code.co_filename)


def asking_frame() -> FrameType | None:
    """The frame that calls the function of torch that a mode sees, whoever's it is."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_name != "__torch_function__" and not code.co_filename.startswith(_CALLING):
            return frame
    return None


def called_in_users_code() -> bool:
    """Whether the user's own line calls the function of torch that a mode sees.

    Unlike for :func:`called_by_user`, what this package calls on its behalf does not count.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_filename in _CALLING or name in _SEEING or code.co_name == "__torch_function__":
            continue
        return is_user_file(code.co_filename)
    return False


_SEEING = ("samba.tracer.layouts", "samba.tracer.patched_functions")


def users_callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's code from one outwards, up to the call of the exporter.

    Args:
        frame: The first frame.
    """
    while frame is not None and not frame.f_code.co_filename.startswith(_EXPORTER):
        if is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def called_by_this_package(but: tuple[str, ...]) -> bool:
    """Whether this package, and neither the user nor a mode, calls the function of torch.

    Args:
        but: Names of modules with modes, which do not count.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if not code.co_filename.startswith(_TORCH) and name not in but:
            return code.co_filename.startswith(_SAMBA)
    return False


def is_asked_by_torch(name: str) -> bool:
    """Whether the code of torch or of this package asks a question, and not the model's.

    Args:
        name: The name of the function that answers. Callers of the same name only pass the question
            on, as ``torch._dynamo.is_compiling`` does: their own callers count.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        if frame.f_code.co_name != name:
            return frame.f_code.co_filename.startswith((_TORCH, _SAMBA))
    return False


def at_users_line(show: Callable[..., None]) -> Callable[..., None]:
    """A way to show warnings that shows them at the line of the user that is being executed.

    Args:
        show: What shows a warning, as ``warnings.showwarning``.

    Returns:
        A function that takes its place.
    """

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not is_user_file(filename):
            users = calling_line().rpartition(":")
            if users[0]:
                filename, lineno, line = users[0], int(users[2]), None
        show(message, category, filename, lineno, file, line)

    return shown


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


def loop_target(frame: FrameType) -> str | None:
    """The variable of the ``for`` statement that a frame is about to start.

    Args:
        frame: A frame that asks for an iterator.

    Returns:
        None if it starts none; an empty name for several variables.
    """
    code, now = _instructions(frame)
    if [i.opname for i in code[now : now + 2]] != ["GET_ITER", "FOR_ITER"]:
        return None
    return next((name for name, what in _variables(code[now + 2]) if what == "STORE"), "")


def is_read_behind_loop(frame: FrameType, name: str) -> bool:
    """Whether code behind a ``for`` statement reads a variable as the loop has left it.

    Args:
        frame: A frame that is about to start the statement.
        name: The variable.
    """
    code, now = _instructions(frame)
    behind = (i for i in code if i.offset >= code[now + 1].argval)
    uses = (what for i in behind for variable, what in _variables(i) if variable == name)
    return next(uses, "") == "LOAD"


_VARIABLE = re.compile("(LOAD|STORE|DELETE)_(FAST|NAME|DEREF|GLOBAL).*")


def _variables(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """The variables of an instruction, each with what becomes of it, in order."""
    if not _VARIABLE.fullmatch(instruction.opname):
        return []
    names = instruction.argval if isinstance(instruction.argval, tuple) else [instruction.argval]
    uses = re.findall("LOAD|STORE|DELETE", instruction.opname)
    return list(zip(names, uses, strict=False))


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
