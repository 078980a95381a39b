"""Rules that many parts of a program share, and where their violations are collected."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pef_schema.errors import PefInvalid, PefLimit
from pef_schema.limits import Limits

_MOST = 1000
"""Problems after which a program is given up: a small file can hold millions."""


class Report:
    """Problems found so far.

    Args:
        limits: Bounds to keep.
        path: The file, for messages.
    """

    __slots__ = ("limits", "path", "problems", "spent")

    def __init__(self, limits: Limits, path: str | None = None) -> None:
        self.limits, self.path = limits, path
        self.problems: list[str] = []
        self.spent = 0

    def add(self, problem: str) -> None:
        """Note a problem.

        Raises:
            PefInvalid: If there are too many to go on.
        """
        self.problems.append(problem)
        if len(self.problems) == _MOST:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise all problems as one error.

        Raises:
            PefInvalid: If there are any.
        """
        if self.problems:
            raise PefInvalid(self.problems, path=self.path)

    def spend(self, what: str, count: int) -> None:
        """Count work on parts that may be shared, so that a small file cannot ask for much of it.

        Raises:
            PefLimit: If the budget is spent; problems that were found before go first.
        """
        self.spent += count
        if self.spent > self.limits.work:
            self.raise_if_any()
            raise PefLimit(
                f"checking {what} takes {self.spent} comparisons, "
                f"at most {self.limits.work} are made",
                path=self.path,
                need=self.limits.work,
                have=self.spent,
            )

    def index(self, where: str, what: str, found: int, count: int) -> None:
        """Note an index that points outside."""
        self.add(f"{where}: {what} {found} is out of range, there are {count}")

    def name(self, where: str, name: str) -> None:
        """Check that a name is not empty, not long, and free of control characters."""
        if 0 < len(name) <= self.limits.name and name.isascii() and name.isprintable():
            return
        if not name:
            self.add(f"{where}: empty name")
        elif any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name[: self.limits.name]):
            self.add(f"{where}: control character in name {name[:80]!r}")
        else:
            self.text(where, name, self.limits.name)

    def text(self, where: str, text: str, most: int) -> None:
        """Check that a text can be encoded and keeps its limit."""
        if text.isascii():
            size = len(text)
        else:
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                self.add(f"{where}: {text[:80]!r} cannot be written as UTF-8")
                return
        if size > most:
            self.add(f"{where}: text of {size} bytes, at most {most} are allowed")

    def unique(self, what: str, names: Sequence[str]) -> None:
        """Check each name, and that no two are the same."""
        if not _are_plain(names, self.limits.name):
            for index, name in enumerate(names):
                self.name(f"{what} {index}", name)
        if len(set(names)) != len(names):
            for name, count in Counter(names).items():
                if count > 1:
                    self.add(f"{what}: name {name[:80]!r} is used {count} times")

    def ascending(self, where: str, what: str, indices: Sequence[int], count: int) -> bool:
        """Check that indices are in range, sorted and unique; return whether they are."""
        if not indices:
            return True
        if len(indices) > count:
            # Before looking at them: many steps may share one long vector.
            self.add(f"{where}: {len(indices)} {what}, but only {count} exist")
            return False
        good = True
        if any(a >= b for a, b in pairwise(indices)):
            self.add(f"{where}: {what} are not in ascending order without repeats")
            good = False
        for index in (min(indices), max(indices)):
            if not 0 <= index < count:
                self.index(where, what, index, count)
                return False
        return good

    def shape(self, shape: tuple[int, ...], itemsize: int) -> str:
        """Return what is wrong with a shape, empty if nothing is."""
        if len(shape) > self.limits.rank:
            return f"rank {len(shape)}, at most {self.limits.rank} is allowed"
        size = itemsize
        for dim in shape:
            if dim < 0:
                return f"negative size {dim}"
            # Sizes other than a 0 are bounded by themselves: (0, 2**63) must not pass.
            if dim > self.limits.file:
                return f"size {dim}, at most {self.limits.file} is allowed"
            # Sizes beside a 0 count as well: XLA multiplies them, and ends the process where
            # their product overflows.
            size *= dim or 1
        if size > self.limits.file:
            return f"{size} bytes, at most {self.limits.file} are allowed"
        if 0 in shape:
            # Loops over the sizes before a 0 are run, to do nothing in each turn.
            turns = math.prod(shape[: shape.index(0)])
            if turns > self.limits.empty:
                return f"sizes before a 0 of {turns}, at most {self.limits.empty} are allowed"
        return ""


def _are_plain(names: Sequence[str], most: int) -> bool:
    """Whether all names are short and of printable ASCII, as most are; asked of all at once."""
    if not names:
        return True
    short = all(names) and max(map(len, names)) <= most
    return short and all(map(str.isascii, names)) and all(map(str.isprintable, names))
