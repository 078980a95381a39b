"""``@covers``: which documented names a test is about, and how to find all such tests.

Example::

    from tests.api.covers import covers

    @covers("samba.session.run(section_ids, section_types)", ".get_section_types")
    def test_sections_run_in_the_given_order(): ...

This is about ``samba.session.run(section_ids)``, ``samba.session.run(section_types)`` and
``samba.session.get_section_types``: several arguments may stand in one pair of parentheses, and
what begins with a dot belongs to the same as what stands before it. The names are literal strings
from :mod:`tests.api.names`, and the tests need not lie in this folder. A test counts if it would
fail when the name misbehaved; that the name exists, or that a call with the argument returns, is
not a behaviour.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.api.names import ALL

Test = TypeVar("Test", bound=Callable[..., object])

TESTS = Path(__file__).parents[1]


def covers(*names: str) -> Callable[[Test], Test]:
    """Declare which documented names a test is about.

    Args:
        names: Names from :mod:`tests.api.names`, as literal strings.

    Returns:
        A decorator that leaves the test as it is.

    Raises:
        ValueError: If there is no name, or one that is not documented.
    """
    each(names)
    return lambda test: test


def each(names: tuple[str, ...]) -> list[str]:
    """The names of a decorator, each in full and by itself.

    Raises:
        ValueError: If there is no name, or one that is not documented.
    """
    full, owner = list[str](), ""
    for name in names:
        function, _, arguments = (owner + name if name[:1] == "." else name).partition("(")
        owner = function.rpartition(".")[0]
        full += [
            f"{function}({argument})" if argument else function
            for argument in arguments.removesuffix(")").split(", ")
        ]
    unknown = [name for name in full if name not in ALL]
    if unknown or not full:
        raise ValueError(f"@covers: not in tests/api/names.py: {', '.join(unknown) or 'no name'}")
    return full


def found(folder: Path = TESTS) -> dict[str, list[str]]:
    """Read which tests cover which names from the decorators, without importing anything.

    Args:
        folder: Where the test files are; ids are relative to its parent.

    Returns:
        Ids of tests by name, in the order of paths and lines.

    Raises:
        ValueError: If a decorator has something else than known literal names, or is on
            something that pytest does not run.
    """
    tests: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "@covers(" not in source:
            continue
        for prefix, function, names in _decorated(ast.parse(source, filename=str(path))):
            where = f"{path.relative_to(folder.parent).as_posix()}::{prefix}{function}"
            if not path.name.startswith("test_") or not function.startswith("test_"):
                raise ValueError(f"{where}: @covers on something that pytest does not run")
            for name in each(names):
                tests.setdefault(name, []).append(where)
    return tests


def _decorated(
    tree: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _decorated(node, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if (
                    isinstance(decorator, ast.Call)
                    and isinstance(decorator.func, ast.Name)
                    and decorator.func.id == "covers"
                ):
                    names = tuple(ast.literal_eval(argument) for argument in decorator.args)
                    yield prefix, node.name, names
