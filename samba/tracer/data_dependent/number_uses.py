"""Whether Python looks at the object that ``item()`` or ``tolist()`` has given, not at its value.

In a trace it is a symbolic number: ``n is True`` is false, and so is ``isinstance(n, int)``. Python
asks no function of torch there that a trace could answer, so the source is read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType

from samba.tracer.data_dependent.source_tests import call_at

__all__ = ["object_use"]

_OF_TYPES = ("isinstance", "type")


def object_use(frame: FrameType) -> ast.expr | None:
    """Where a function tests the identity or the type of what it is calling for.

    Args:
        frame: A frame that has called for a number.

    Returns:
        The first such expression; None if there is none, or the source is not at hand. What another
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
