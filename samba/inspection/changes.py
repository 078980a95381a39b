"""Differences as data, and the few forms in which all levels look for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Change", "by_name", "fields", "order", "renamed", "some_names"]

_LISTED = 6
"""Names that one line tells."""
_LONGEST = 160
"""Characters of a text of the file that one line tells."""
_BOTH = 500
"""Characters of what each side has where it differs; lists of names are cut by their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Args:
        kind: ``added`` (only the second program has it), ``removed`` (only the first has it),
            ``changed``, or ``renamed`` (the same under another name, number or line).
        what: What differs.
        a: What the first program has there; empty where that is nothing.
        b: What the second program has there.
        count: How many differences of this kind it stands for.
    """

    kind: str
    what: str
    a: str = ""
    b: str = ""
    count: int = 1


def fields(where: str, *found: tuple[str, str, str]) -> Iterator[Change]:
    """Compare things that both programs have.

    Args:
        where: Whose they are.
        found: Name, and what each program has.

    Example:
        >>> [change.what for change in fields("lr", ("kind", "a", "a"), ("default", "1", "2"))]
        ['lr: default']
    """
    for name, a, b in found:
        if a != b:
            shown_a, shown_b = _apart(a, b, _BOTH)
            yield Change(kind="changed", what=f"{where}: {name}", a=shown_a, b=shown_b)


def by_name(what: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    """Compare texts by name: what only one side has, and what differs.

    Args:
        what: What they are; comes before the name.
        a, b: What each program has.
    """
    for name, text in a.items():
        if name not in b:
            yield Change(kind="removed", what=f"{what}{name}", a=_cut(text))
        elif text != b[name]:
            shown_a, shown_b = _apart(text, b[name], _LONGEST)
            yield Change(kind="changed", what=f"{what}{name}", a=shown_a, b=shown_b)
    for name, text in b.items():
        if name not in a:
            yield Change(kind="added", what=f"{what}{name}", b=_cut(text))


def renamed(what: str, pairs: Sequence[tuple[str, str]]) -> Iterator[Change]:
    """One change for all that are the same but for their names, which follow from each other.

    Args:
        what: What they are, in the plural.
        pairs: Both names of each.
    """
    if pairs:
        a, b = (some_names([pair[side] for pair in pairs]) for side in (0, 1))
        yield Change(kind="renamed", what=what, a=a, b=b, count=len(pairs))


def order(what: str, a: Sequence[str], b: Sequence[str]) -> Iterator[Change]:
    """Compare the order of what both have.

    Args:
        what: What they are, in the plural.
        a, b: Their names.
    """
    mine, other = set(a), set(b)
    ours, theirs = [n for n in a if n in other], [n for n in b if n in mine]
    if ours != theirs:
        first = next(i for i, name in enumerate(ours) if [name] != theirs[i : i + 1])
        yield Change(
            kind="changed",
            what=f"order of {what}",
            a=some_names(ours[first:]),
            b=some_names(theirs[first:]),
        )


def some_names(names: Iterable[str], most: int = _LISTED) -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> some_names("abcdefgh")
        'a, b, c, d, e, f and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(map(_cut, listed[:most])) + more


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _apart(a: str, b: str, most: int) -> tuple[str, str]:
    """Two texts that differ, each cut so that the first difference is among what is left."""
    if max(len(a), len(b)) <= most:
        return a, b
    shortest = min(len(a), len(b))
    at = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    start = max(0, at - _LONGEST // 4)
    before = "..." if start else ""
    return before + _cut(a[start:]), before + _cut(b[start:])
