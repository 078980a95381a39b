"""Rules that many parts of a program share, bounds of sizes, and where violations are collected.

A few bytes can ask for any size, and XLA ends the whole process over one whose product overflows.
Operations that make a tensor of a size they are told are listed here; those that take their size
from a value are bounded by that value.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from pef_schema.errors import PefInvalid, PefLimit
from pef_schema.limits import Limits
from pef_schema.program import Arg, DType, Node

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
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

    def index(self, where: str, what: str, index: int, count: int) -> None:
        """Note an index that points outside."""
        self.add(f"{where}: {what} {index} is out of range, there are {count}")

    def name(self, where: str, name: str) -> None:
        """Check that a name is not empty, not long, and free of control characters."""
        if 0 < len(name) <= self.limits.name and name.isascii() and name.isprintable():
            return
        if not name:
            self.add(f"{where}: empty name")
        elif _CONTROL.search(name, 0, self.limits.name):
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


def _by_name(operations: Mapping[tuple[int, ...], str]) -> dict[str, tuple[int, ...]]:
    """Positions of arguments by operation, from the names of operations by positions."""
    return {name: places for places, names in operations.items() for name in names.split()}


_SHAPES = _by_name(
    {
        (0,): "empty empty_permuted empty_strided full ones rand randn zeros",
        (0, 1): "eye tril_indices triu_indices",
        (1,): """
            _adaptive_avg_pool2d _adaptive_avg_pool3d _reshape_alias _reshape_alias_copy
            _reshape_copy _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa
            _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
            adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
            adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator as_strided
            as_strided_copy broadcast_to col2im expand expand_copy new_empty
            new_empty_strided new_full new_ones new_zeros repeat reshape resize sum_to_size
            tile upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
            upsample_nearest2d upsample_nearest3d upsample_trilinear3d view view_copy""",
        (2,): "fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d unflatten",
    }
)
"""Positions of the arguments that together are the sizes of one tensor, by operation."""

_COUNTS = _by_name(
    {
        (0,): "bartlett_window blackman_window hamming_window hann_window kaiser_window randperm",
        (0, 1, 2): "arange",
        (1,): """
            constant_pad_nd diag_embed diagflat histc multinomial one_hot pad
            repeat_interleave split_with_sizes split_with_sizes_copy vander""",
        (2,): "bincount linspace logspace",
    }
)
"""Positions of numbers each of which is a size, or moves an end of one, by operation."""

_RANDINT = "randint"
_SHAPE_NAMES = frozenset(
    {"size", "sizes", "output_size", "repeats", "n", "m", "row", "col", "dims"}
)
_COUNT_NAMES = frozenset(
    {"bins", "end", "minlength", "num_classes", "num_samples", "offset", "pad", "split_sizes"}
    | {"start", "step", "steps", "window_length", "N"}
)


def takes_sizes(op: str) -> bool:
    """Whether arguments of an operation say how large its result is.

    Args:
        op: Its full name; what follows the name proper, the overload, makes no difference.

    Example:
        >>> takes_sizes("aten.full.default"), takes_sizes("aten.relu.default")
        (True, False)
    """
    name = _name(op)
    return name in _SHAPES or name in _COUNTS or name == _RANDINT


def check_sizes(node: Node, where: str, report: Report) -> None:
    """Check that an operation is asked for no size beyond those of values.

    Args:
        node: The node.
        where: Its place, for messages.
        report: Receives the problems.
    """
    name = _name(node.op)
    shapes, counts = _SHAPES.get(name), _COUNTS.get(name)
    if name == _RANDINT:
        # randint(high, size) and randint(low, high, size): the list is the size.
        shapes = tuple([i for i, arg in enumerate(node.args) if isinstance(arg, tuple)])
    if shapes is not None:
        args = [node.args[i] for i in shapes if i < len(node.args)]
        args += [arg for key, arg in node.kwargs if key in _SHAPE_NAMES]
        # -1 stands for a size that follows from the others; torch's check of others is elsewhere.
        sizes = tuple([abs(size) for size in _integers(args)])
        if problem := report.shape(sizes, 1):
            report.add(f"{where}: {node.op} asks for {problem}")
    if counts is not None:
        args = [node.args[i] for i in counts if i < len(node.args)]
        args += [arg for key, arg in node.kwargs if key in _COUNT_NAMES]
        for number in _numbers(args):
            # Written so that a NaN is a problem too.
            if not abs(number) <= report.limits.file:
                report.add(
                    f"{where}: {node.op} asks for size {number}, "
                    f"at most {report.limits.file} is allowed"
                )


def _name(op: str) -> str:
    parts = op.split(".", 2)
    return parts[1] if len(parts) > 1 else op


def _integers(args: Iterable[Arg]) -> list[int]:
    return [n for n in _numbers(args) if isinstance(n, int)]


def _numbers(args: Iterable[Arg]) -> list[int | float]:
    """Return the numbers among arguments, and those of lists."""
    numbers: list[int | float] = []
    # Not by recursion: how deep lists are nested is checked elsewhere, and later.
    pending = [*args][::-1]
    while pending:
        arg = pending.pop()
        if isinstance(arg, tuple):
            pending += arg[::-1]
        elif isinstance(arg, (int, float)) and not isinstance(arg, (bool, DType)):
            numbers.append(arg)
    return numbers
