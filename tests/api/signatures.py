"""Documented signatures, and the file ``signatures.txt`` that holds them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

SIGNATURES = Path(__file__).with_name("signatures.txt")
"""The documented names, arguments and defaults, made by :mod:`tests.api.read_pages`."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A documented name and its arguments.

    Args:
        name: Where it is found, such as ``samba.session.run``.
        shown: Its arguments as written in a signature without annotations; None where the page
            shows no signature, as for a property.
        more: Arguments that the page describes or uses without showing them there.
    """

    name: str
    shown: str | None = None
    more: tuple[str, ...] = ()

    @classmethod
    def parse(cls, name: str, text: str | None) -> Signature:
        """Make one of a signature's text.

        Args:
            name: Where it is found.
            text: What stands between the brackets, with or without annotations; None without
                brackets.

        Raises:
            SyntaxError: If that is not a signature.
        """
        if text is None:
            return cls(name)
        arguments = _parsed(text)
        ones = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for argument in filter(None, (*ones, arguments.vararg, arguments.kwarg)):
            argument.annotation = None
        if arguments.args and arguments.args[0].arg == "self":
            del arguments.args[0]
        return cls(name, ast.unparse(arguments))

    @property
    def defaults(self) -> dict[str, str]:
        """Defaults by argument, as they are written; only of those that have one."""
        arguments = _parsed(self.shown or "")
        positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        given = positional[len(positional) - len(arguments.defaults) :]
        return {n: ast.unparse(d) for n, d in zip(given, arguments.defaults, strict=True)}

    @property
    def positional(self) -> tuple[str, ...]:
        """Arguments that may be given by place, in that order."""
        arguments = _parsed(self.shown or "")
        return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments in the order of the signature, then the others."""
        parsed = _parsed(self.shown or "")
        collected = [a.arg for a in (*parsed.kwonlyargs, parsed.vararg, parsed.kwarg) if a]
        return (*self.positional, *collected, *self.more)

    def described(self, names: Iterable[str]) -> Signature:
        """The same with further arguments; those that it has already stay where they are."""
        new = [name for name in dict.fromkeys(names) if name not in self.arguments]
        return replace(self, more=(*self.more, *new))

    def line(self) -> str:
        """The line of the file."""
        shown = "" if self.shown is None else f"({self.shown})"
        return " ".join([self.name + shown, *(["+", *self.more] if self.more else [])])


def _parsed(text: str) -> ast.arguments:
    (function,) = ast.parse(f"def f({text}): ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def written(pages: Mapping[str, Iterable[Signature]]) -> str:
    """The text of the file.

    Args:
        pages: Signatures by the title of their page.
    """
    parts = [
        "\n".join([f"[{title}]", *(signature.line() for signature in signatures)])
        for title, signatures in pages.items()
    ]
    return "\n\n".join(parts) + "\n"


def read(text: str) -> dict[str, tuple[Signature, ...]]:
    """What :func:`written` wrote.

    Args:
        text: The text of the file.

    Returns:
        Signatures by the title of their page.

    Raises:
        SyntaxError: If a line is not a signature.
    """
    pages: dict[str, tuple[Signature, ...]] = {}
    title = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            title = line.strip("[]")
            pages[title] = ()
            continue
        head, _, more = line.partition(" + ")
        name, bracket, rest = head.partition("(")
        signature = Signature.parse(name, rest.removesuffix(")") if bracket else None)
        pages[title] = (*pages[title], signature.described(more.split()))
    return pages
