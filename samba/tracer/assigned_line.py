"""The line on which code changes a name: found in the source of a class, not by running it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from samba.tracer.names import is_user_file

__all__ = ["assigned_line"]


def assigned_line(owner: type | Callable[..., Any], name: str) -> str:
    """Where an attribute or a variable is changed outside of ``__init__``.

    Args:
        owner: The class of the object that has the attribute, or the function that uses the
            variable.
        name: Its name.

    Returns:
        ``file:line``: where it is assigned, else where it is used; empty where no source says so.
    """
    used = ""
    for part in owner.__mro__ if isinstance(owner, type) else (owner,):
        try:
            lines, start = inspect.getsourcelines(part)
            file = inspect.getsourcefile(part)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        if not is_user_file(file or ""):
            continue  # torch's own modules have names of their own
        for node in _outside_of_init(tree):
            found = _touches(node, name)
            if found is None:
                continue
            where = f"{file}:{start + node.lineno - 1}"  # pyright: ignore[reportAttributeAccessIssue]  # statements have lines
            if found:
                return where
            used = used or where
    return used


def _outside_of_init(tree: ast.AST, *, inside: bool = False) -> Iterator[ast.AST]:
    """Statements and expressions of functions, but for those of ``__init__``."""
    for node in ast.iter_child_nodes(tree):
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if function and getattr(node, "name", "") == "__init__":
            continue
        if inside:
            yield node
        yield from _outside_of_init(node, inside=inside or function)


def _touches(node: ast.AST, name: str) -> bool | None:
    """True if a statement assigns the name, False if it calls something on it; else None."""
    match node:
        case ast.Assign(targets=targets):
            return True if any(_base(target) == name for target in targets) else None
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return True if _base(target) == name else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value))):
            return False if _base(value) == name else None
        case ast.Call(args=[first, *_], func=ast.Name(id="next")):
            return None if _base(first) != name else False
        case _:
            return None


def _base(target: ast.AST) -> str:
    """The attribute or variable that a target is of: ``a`` of ``self.a[0]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""
