"""The rules of the reader, read out of its code: every place that refuses a file."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "pef_schema"
_OTHERS = {
    *("atomic.py", "errors.py", "fingerprint.py", "garbage.py", "module_paths.py"),
    *("write.py", "write_buffer.py"),
}
"""Modules that no file is read by."""
_NOTES = {"add", "index", "fail"}
"""Methods that note a problem of a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A place that refuses a file.

    Args:
        module: Name of the module.
        function: The function it is in.
        code: Its statement, in one line.
        lines: Lines of the statement.
    """

    module: str
    function: str
    code: str
    lines: range

    def __str__(self) -> str:
        return f"{self.module}:{self.lines.start} {self.function}: {self.code[:150]}"


@functools.cache
def find_rules() -> tuple[Rule, ...]:
    """All places in the reader that raise a ``PefError`` or note a problem of a program."""
    files = [path for path in sorted(PACKAGE.glob("*.py")) if path.name not in _OTHERS]
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    return tuple([rule for name, tree in trees.items() for rule in _rules_of(name, tree, "")])


def _rules_of(module: str, node: ast.AST, function: str) -> Iterator[Rule]:
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef) else function
        if _refuses(child) and function:
            code = " ".join(ast.unparse(child).split())
            lines = range(child.lineno, (child.end_lineno or child.lineno) + 1)
            yield Rule(module=module, function=function, code=code, lines=lines)
        else:
            yield from _rules_of(module, child, inside)


def _refuses(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return isinstance(node.exc, ast.Call)
    if isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr):
        return True
    call = node.value if isinstance(node, (ast.Expr, ast.Return)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    receiver = ast.unparse(call.func.value)
    return call.func.attr in _NOTES and (receiver == "self" or receiver.endswith("report"))


class Reached:
    """Notes which rules are applied while it is active.

    Args:
        rules: The rules to watch.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.left = set(rules)
        self._by_place: dict[tuple[str, str], list[Rule]] = {}
        for rule in rules:
            self._by_place.setdefault((rule.module, rule.function), []).append(rule)
        self._known: dict[CodeType, Callable[..., Any] | None] = {}
        self._before: Any = None

    def __enter__(self) -> Reached:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._watch(code)
        return self._known[code]

    def _watch(self, code: CodeType) -> Callable[..., Any] | None:
        """What notes the lines of a function as they run; None where nothing is left to note."""
        path = Path(code.co_filename)
        place = (path.name if path.parent == PACKAGE else "", code.co_name)
        lines = {line: rule for rule in self._by_place.get(place, ()) for line in rule.lines}
        if self.left.isdisjoint(lines.values()):
            return None

        def line(inner: FrameType, event: str, arg: object) -> Any:
            if inner.f_lineno in lines:
                self.left.discard(lines[inner.f_lineno])
                self._known.pop(code, None)
            return line

        return line
