"""Where in the source of a function a condition is tested, and whether one outcome only raises."""

from __future__ import annotations

import ast
import builtins
import dis
import itertools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

__all__ = ["Tested", "call_at", "is_caught", "tested_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A condition within the test of a statement.

    Args:
        leaf: The condition.
        path: What stands around it in the test, from the whole test inwards, the condition last.
        raises: What the whole test is where the statement does nothing but raise; None if neither
            outcome only raises.
        exception: What is raised, as written; None if that cannot be told.
    """

    leaf: ast.expr
    path: tuple[ast.expr, ...]
    raises: bool | None
    exception: ast.expr | None


def tested_at(frame: FrameType) -> Tested | None:
    """The condition whose truth a frame is asking for, if it is part of a statement's test.

    Args:
        frame: A frame that has called for the truth of an object.

    Returns:
        None if the source is not at hand, or it asks for another reason.
    """
    code = [i for i in dis.get_instructions(frame.f_code) if i.opname != "EXTENDED_ARG"]
    now = next((n for n, i in enumerate(code) if i.offset == frame.f_lasti), -1)
    if now < 0:
        return None
    asks = code[now].opname
    is_call = asks.startswith(("CALL", "PRECALL"))
    if not is_call and asks != "COMPARE_OP":
        if "JUMP" not in asks and asks != "TO_BOOL":
            return None
        # A jump may have the place of the statement; what it tests was made right before.
        now -= 1
        while now >= 0 and code[now].opname in _BETWEEN:
            now -= 1
    place = None if now < 0 else code[now].positions
    tree = _tree(frame.f_code.co_filename, _lines(frame))
    if tree is None or place is None or place.end_lineno is None:
        return None
    for statement, test in _tests(tree):
        if not _covers([test], place.end_lineno):
            continue
        for path in _leaves(test, ()):
            leaf = path[-1]
            # A call begins, for Python, where its last attribute does.
            ends = (leaf.end_lineno, leaf.end_col_offset)
            if ends == (place.end_lineno, place.end_col_offset) and _is_within(place, leaf):
                if is_call and not _is_bool_call(leaf):
                    return None
                raises, exception = _raising(statement, tree)
                return Tested(leaf=leaf, path=path, raises=raises, exception=exception)
    return None


def call_at(frame: FrameType) -> tuple[ast.AST | None, ast.Call | None]:
    """The call that a frame is waiting for.

    Args:
        frame: A frame that has called something.

    Returns:
        The innermost function, or the module, in which the call is written, and the call; two times
        None if the source is not at hand.
    """
    # Where Python calls Python, the last instruction is one of its cache entries.
    _, line, _, column = next(
        itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    )
    tree = _tree(frame.f_code.co_filename, _lines(frame))
    if tree is None or line is None:
        return None, None
    function: ast.AST = tree
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, _FUNCTIONS) and _covers([node], line):
            function = node
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == (line, column):
            return function, node
    return None, None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_BETWEEN = frozenset({"COPY", "NOP", "SWAP", "TO_BOOL", "CACHE"})
"""Instructions between the one that makes a value and the one that asks for its truth."""


def _is_within(place: dis.Positions, leaf: ast.expr) -> bool:
    return (place.lineno or 0, place.col_offset or 0) >= (leaf.lineno, leaf.col_offset)


def _lines(frame: FrameType) -> tuple[str, ...]:
    return tuple(linecache.getlines(frame.f_code.co_filename, frame.f_globals))


@lru_cache(maxsize=16)
def _tree(filename: str, lines: tuple[str, ...]) -> ast.Module | None:
    del filename
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def _tests(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, ast.expr]]:
    """Statements and expressions that test something, with what they test."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            yield node, node.test


def _leaves(test: ast.expr, above: tuple[ast.expr, ...]) -> Iterator[tuple[ast.expr, ...]]:
    path = (*above, test)
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value, path)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, path)
    else:
        yield path


def _is_bool_call(leaf: ast.expr) -> bool:
    """Whether a condition is the truth of its argument, as ``bool(x)`` is."""
    if not isinstance(leaf, ast.Call) or leaf.keywords:
        return False
    name = getattr(leaf.func, "attr", getattr(leaf.func, "id", ""))
    return name == "is_nonzero" or (name == "bool" and len(leaf.args) == 1)


# -- what raises ------------------------------------------------------------------


def _raising(
    statement: ast.stmt | ast.expr, tree: ast.Module
) -> tuple[bool | None, ast.expr | None]:
    if isinstance(statement, ast.Assert):
        return False, ast.Name(id="AssertionError", ctx=ast.Load())
    if not isinstance(statement, ast.If):
        return None, None
    if _only_raises(statement.body):
        return True, _raised(statement.body)
    if _only_raises(statement.orelse):
        return False, _raised(statement.orelse)
    rest = _behind(statement, tree)
    if not statement.orelse and _leaves_function(statement.body) and _only_raises(rest):
        return False, _raised(rest)
    return None, None


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end with an exception, whatever else they do before."""
    if not body:
        return False
    for statement in body[:-1]:
        if any(isinstance(n, _LEAVING) for n in _within(statement)):
            return False
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    if isinstance(last, ast.If):
        return _only_raises(last.body) and _only_raises(last.orelse)
    return False


_LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Try, ast.Await)


def _within(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's parts, those of functions that it defines left out."""
    yield statement
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _within(child)  # pyright: ignore[reportArgumentType]  # any part has parts


def _leaves_function(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return)


def _raised(body: Sequence[ast.stmt]) -> ast.expr | None:
    last = body[-1]
    if not isinstance(last, ast.Raise) or last.exc is None:
        return None
    return last.exc.func if isinstance(last.exc, ast.Call) else last.exc


def _behind(statement: ast.stmt, tree: ast.Module) -> Sequence[ast.stmt]:
    """What follows a statement where it stands in the body of a function."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement in node.body:
            return node.body[node.body.index(statement) + 1 :]
    return ()


# -- who catches ------------------------------------------------------------------


def is_caught(exception: ast.expr | None, frames: Sequence[FrameType]) -> bool:
    """Whether code around a statement may catch what it raises, and go on.

    Args:
        exception: What is raised, as written in the first frame.
        frames: The frames from the statement outwards, as far as the model's code goes.
    """
    kind = None if exception is None or not frames else _value(exception, frames[0])
    for frame in frames:
        tree, line = _tree(frame.f_code.co_filename, _lines(frame)), frame.f_lineno
        if tree is None:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Try) and node.handlers and _covers(node.body, line):
                for handler in node.handlers:
                    if _catches(handler, kind, frame) and not _only_raises(handler.body):
                        return True
    return False


def _covers(body: Sequence[ast.stmt | ast.expr], line: int) -> bool:
    return any(s.lineno <= line <= (s.end_lineno or s.lineno) for s in body)


def _catches(handler: ast.ExceptHandler, kind: Any, frame: FrameType) -> bool:
    if handler.type is None or not isinstance(kind, type):
        return True
    written = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for entry in written:
        caught = _value(entry, frame)
        if not isinstance(caught, type) or issubclass(kind, caught):
            return True
    return False


def _value(written: ast.expr, frame: FrameType) -> Any:
    """What a name, or an attribute of one, stands for in a frame; None if that is not known."""
    if isinstance(written, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if written.id in names:
                return names[written.id]
    elif isinstance(written, ast.Attribute):
        return getattr(_value(written.value, frame), written.attr, None)
    return None
