"""What the source says of a value that ``forward`` asks for: which test, which outcome raises."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Any

from samba.tracer.user_code import (
    Asks,
    asked_value,
    call_at,
    covers,
    encloses,
    source_of,
    value_in,
)


class Items(Enum):
    """How a condition depends on several values."""

    ANY = "one of them suffices: any(...)"
    ALL = "it takes all of them: all(...), or two lists that are equal"
    NOT_ALL = "one of them suffices that is false: two lists that are not equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A condition within the test of a statement.

    Args:
        leaf: The condition.
        path: What stands around it in the test, from the whole test inwards, the condition last.
        raises: What the whole test is where the statement does nothing but raise; None if neither
            outcome only raises.
        exception: What is raised, as written; None if that cannot be told.
        is_first: Whether what is asked for is only the first of its comparisons in a row.
        items: How it depends on several values, if what is asked for is one of them.
    """

    leaf: ast.expr
    path: tuple[ast.expr, ...]
    raises: bool | None
    exception: ast.expr | None
    is_first: bool
    items: Items | None


def tested_at(frame: FrameType) -> Tested | None:
    """The condition whose truth a frame is asking for, if it is part of a statement's test.

    Args:
        frame: A frame that has called for the truth of an object.

    Returns:
        None if the source is not available, or it asks for another reason.
    """
    (place, asks), tree = asked_value(frame), source_of(frame)
    if tree is None or place is None:
        return None
    for statement, path in _conditions(tree, place[1]):
        leaf = path[-1]
        # A call begins, for Python, where its last attribute does.
        if (leaf.end_lineno, leaf.end_col_offset) == place[1::2] and encloses(leaf, place):
            items = None if asks is Asks.BRANCH else _items(leaf, frame)
            if asks is not Asks.BRANCH and items is None and not _is_truth(leaf):
                return None
            is_first = isinstance(leaf, ast.Compare) and len(leaf.ops) > 1
            return _tested(statement, path, tree, is_first=is_first, items=items)
    return None


def compared_at(frame: FrameType, call: ast.Call) -> Tested | None:
    """The condition that is the result of a call, or a comparison of it with others.

    Args:
        frame: The frame that makes the call.
        call: The call, as :func:`number_call` gives it.

    Returns:
        None if the call is no such part of a statement's test.
    """
    tree = source_of(frame)
    if tree is None or call.end_lineno is None:
        return None
    for statement, path in _conditions(tree, call.end_lineno):
        leaf = path[-1]
        terms = [leaf.left, *leaf.comparators] if isinstance(leaf, ast.Compare) else [leaf]
        if any(term is call for term in terms):
            return _tested(statement, path, tree)
    return None


def number_call(frame: FrameType) -> tuple[ast.Call, type[int] | type[float]] | None:
    """The call of ``int`` or ``float`` that a frame is waiting for, and which of both it is.

    Args:
        frame: A frame that has called something.

    Returns:
        None if it has called something else, or the source is not available.
    """
    call = call_at(frame)[1]
    function = None if call is None else value_in(frame, call.func)
    if call is None or len(call.args) != 1 or call.keywords:
        return None
    return next(((call, kind) for kind in (int, float) if function is kind), None)


def _tested(
    statement: ast.stmt | ast.expr,
    path: tuple[ast.expr, ...],
    tree: ast.Module,
    *,
    is_first: bool = False,
    items: Items | None = None,
) -> Tested:
    raises, exception = _raising(statement, tree)
    return Tested(
        leaf=path[-1],
        path=path,
        raises=raises,
        exception=exception,
        is_first=is_first,
        items=items,
    )


def _conditions(
    tree: ast.Module, line: int
) -> Iterator[tuple[ast.stmt | ast.expr, tuple[ast.expr, ...]]]:
    """Statements and expressions that test something on a line, with the path to each condition."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)) and covers(
            [node.test], line
        ):
            for path in _leaves(node.test, ()):
                yield node, path


def _leaves(test: ast.expr, above: tuple[ast.expr, ...]) -> Iterator[tuple[ast.expr, ...]]:
    path = (*above, test)
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value, path)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, path)
    else:
        yield path


_TRUTHS = frozenset({"bool", "is_nonzero", "equal", "allclose"})
"""Names of functions that give the truth of what a tensor is asked for."""


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _is_truth(leaf: ast.expr) -> bool:
    """Whether a condition is the truth of its arguments, as ``bool(x)`` is."""
    return isinstance(leaf, ast.Call) and _name(leaf) in _TRUTHS


def _items(leaf: ast.expr, frame: FrameType) -> Items | None:
    """How a condition depends on several values whose truth it asks for one after the other."""
    function = value_in(frame, leaf.func) if isinstance(leaf, ast.Call) else None
    compares = [type(op) for op in leaf.ops] if isinstance(leaf, ast.Compare) else []
    if function is any:
        return Items.ANY
    if function is all or compares == [ast.Eq]:
        return Items.ALL
    return Items.NOT_ALL if compares == [ast.NotEq] else None


# -- conditions that are evaluated ------------------------------------------------

ASKED = "__samba_asked__"
"""The name that a condition to be evaluated has for what makes its calls."""


def asking(condition: ast.expr) -> ast.Expression:
    """A condition in which another function makes the calls that ask for values of tensors.

    Args:
        condition: The condition.

    Returns:
        An expression in which :data:`ASKED` is called with each such function and its arguments.

    Example:
        >>> ast.unparse(asking(ast.parse("int(x.max()) > n", mode="eval").body))
        '__samba_asked__(int, x.max()) > n'
    """
    whole = ast.Expression(copy.deepcopy(condition))
    return ast.fix_missing_locations(_Asking().visit(whole))


_ASKING = _TRUTHS | {"int", "float", "any", "all"}


class _Asking(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if _name(node) not in _ASKING:
            return node
        name = ast.Name(id=ASKED, ctx=ast.Load())
        return ast.copy_location(
            ast.Call(func=name, args=[node.func, *node.args], keywords=node.keywords), node
        )


_READ = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context),
)
_SIZES = frozenset({"len", "size", "dim", "numel", "float"})


def only_reads(term: ast.expr) -> bool:
    """Whether evaluating an expression once more changes nothing, as far as its form says.

    Example:
        >>> [only_reads(ast.parse(t, mode="eval").body) for t in ("m.sizes[0] - 1", "next(i)")]
        [True, False]
    """
    return all(
        isinstance(node, _READ) or (isinstance(node, ast.Call) and _name(node) in _SIZES)
        for node in ast.walk(term)
    )


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
    kind = None if exception is None or not frames else value_in(frames[0], exception)
    for frame in frames:
        tree, line = source_of(frame), frame.f_lineno
        if tree is None:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Try) and node.handlers and covers(node.body, line):
                for handler in node.handlers:
                    if _catches(handler, kind, frame) and not _only_raises(handler.body):
                        return True
    return False


def _catches(handler: ast.ExceptHandler, kind: object, frame: FrameType) -> bool:
    if handler.type is None or not isinstance(kind, type):
        return True
    written = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for entry in written:
        caught = value_in(frame, entry)
        if not isinstance(caught, type) or issubclass(kind, caught):
            return True
    return False


# -- numbers as objects ------------------------------------------------------------

_OF_TYPES = ("isinstance", "type")


def object_use(frame: FrameType) -> ast.expr | None:
    """Where a function tests the identity or the type of the number that it is calling for.

    In a trace what ``item()`` or ``tolist()`` gives is a symbolic number: ``n is True`` is false,
    and so is ``isinstance(n, int)``. Python asks no function of torch there that a trace could
    answer.

    Args:
        frame: A frame that has called for a number.

    Returns:
        The first such expression; None if there is none, or no source is available. What another
        function does with the number is not looked at.
    """
    function, call = call_at(frame)
    if function is None or call is None:
        return None
    names = set(_names_given(function, call))
    for node in ast.walk(function):
        if isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            pairs = zip(terms, node.ops, terms[1:], strict=False)
            looked = [
                term
                for left, op, right in pairs
                if isinstance(op, (ast.Is, ast.IsNot)) and not (_is_none(left) or _is_none(right))
                for term in (left, right)
            ]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            looked = node.args[:1] if node.func.id in _OF_TYPES else []
        else:
            continue
        if any(_holds(term, call, names) for term in looked):
            return node
    return None


def _names_given(function: ast.AST, call: ast.Call) -> Iterator[str]:
    """Names to which the result of a call is given, by itself or as a part of an expression."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension)):
            targets = [node.target]
        else:
            continue
        value = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
        if value is not None and _holds(value, call, set()):
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _holds(term: ast.expr, call: ast.Call, names: set[str]) -> bool:
    return any(n is call or (isinstance(n, ast.Name) and n.id in names) for n in ast.walk(term))


def _is_none(term: ast.expr) -> bool:
    return isinstance(term, ast.Constant) and term.value is None
