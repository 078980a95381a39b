"""Which items of two lists stand for each other, in a time that grows with their length alone.

An item that was inserted leaves all others matched: items are matched by what identifies them
first, and between those that are by what is less and less sure. ``difflib`` may take a time that
grows with the square of the length, which is minutes for graphs of 100,000 nodes.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator, Sequence

__all__ = ["matched"]

_CELLS = 10_000
"""Pairs of items between two matches of which the best choice is looked for."""

Keys = Sequence[Hashable]


def matched(ours: Sequence[Keys], theirs: Sequence[Keys]) -> list[tuple[int, int]]:
    """Match the items of two lists without crossing.

    Args:
        ours: For each way of telling items apart, the surest first, the keys of all items.
        theirs: The same of the other list.

    Returns:
        Pairs of positions, ascending in both lists.

    Example:
        >>> matched(["abcd"], ["axcd"])
        [(0, 0), (2, 2), (3, 3)]
        >>> matched(["abcd", "...."], ["axcd", "...."])
        [(0, 0), (1, 1), (2, 2), (3, 3)]
    """
    pairs: list[tuple[int, int]] = []
    for mine, other in zip(ours, theirs, strict=True):
        found: list[tuple[int, int]] = []
        for low, high in _gaps(pairs, len(mine), len(other)):
            found += _match(mine, other, low, high)
        pairs = sorted([*pairs, *found])
    return pairs


def _gaps(
    pairs: Sequence[tuple[int, int]], ours: int, theirs: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Stretches between matches that both lists have items in, as first and behind the last."""
    low = (0, 0)
    for pair in (*pairs, (ours, theirs)):
        if pair[0] > low[0] and pair[1] > low[1]:
            yield low, pair
        low = (pair[0] + 1, pair[1] + 1)


def _match(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """Match one stretch: equal ends, then keys that occur once, then what is between these."""
    (a, b), (c, d) = low, high
    found: list[tuple[int, int]] = []
    while a < c and b < d and ours[a] == theirs[b]:
        found.append((a, b))
        a, b = a + 1, b + 1
    while a < c and b < d and ours[c - 1] == theirs[d - 1]:
        c, d = c - 1, d - 1
        found.append((c, d))
    anchors = _once_in_both(ours, theirs, (a, b), (c, d))
    shifted = [(i - a, j - b) for i, j in anchors]
    for (e, f), (g, h) in _gaps(shifted, c - a, d - b):
        choose = _longest if (g - e) * (h - f) <= _CELLS else _next
        found += choose(ours, theirs, (a + e, b + f), (a + g, b + h))
    return [*found, *anchors]


def _once_in_both(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """The longest ascending choice among items whose key occurs once in each stretch."""
    mine = _places(ours, low[0], high[0])
    other = _places(theirs, low[1], high[1])
    candidates = [(i, other[key]) for key, i in mine.items() if i >= 0 and other.get(key, -1) >= 0]
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(candidates):
        at = bisect.bisect_left(tails, j)
        before.append(ends[at - 1] if at else -1)
        if at == len(tails):
            tails.append(j)
            ends.append(n)
        else:
            tails[at], ends[at] = j, n
    chosen: list[tuple[int, int]] = []
    n = ends[-1] if ends else -1
    while n >= 0:
        chosen.append(candidates[n])
        n = before[n]
    return chosen[::-1]


def _places(keys: Keys, start: int, end: int) -> dict[Hashable, int]:
    """Position of each key, in order; -1 for one that occurs several times."""
    found: dict[Hashable, int] = {}
    for i in range(start, end):
        found[keys[i]] = -1 if keys[i] in found else i
    return found


def _longest(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """The longest choice of equal items, by the table of all pairs."""
    mine, other = ours[low[0] : high[0]], theirs[low[1] : high[1]]
    lengths = [[0] * (len(other) + 1)]
    for key in mine:
        above, row = lengths[-1], [0]
        for j, same in enumerate(other):
            row.append(above[j] + 1 if key == same else max(above[j + 1], row[j]))
        lengths.append(row)
    found: list[tuple[int, int]] = []
    i, j = len(mine), len(other)
    while i and j:
        if mine[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            found.append((low[0] + i, low[1] + j))
        elif lengths[i - 1][j] >= lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def _next(
    ours: Keys, theirs: Keys, low: tuple[int, int], high: tuple[int, int]
) -> list[tuple[int, int]]:
    """For each item the next equal one behind the last match: quick, where a table is too large."""
    places: dict[Hashable, list[int]] = {}
    for j in range(low[1], high[1]):
        places.setdefault(theirs[j], []).append(j)
    found: list[tuple[int, int]] = []
    last = low[1] - 1
    for i in range(low[0], high[0]):
        candidates = places.get(ours[i], ())
        at = bisect.bisect_right(candidates, last)
        if at < len(candidates):
            last = candidates[at]
            found.append((i, last))
    return found
