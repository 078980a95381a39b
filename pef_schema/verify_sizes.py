"""Rules of arguments that are sizes: what an operation makes of them is bounded, as values are.

A few bytes can ask for any size, and XLA ends the whole process over one whose product overflows.
What stands here are the operations that make a tensor of a size they are told; those that take
their size from a value are bounded by that value.
"""

from __future__ import annotations

from collections.abc import Iterable

from pef_schema.program import Arg, DType, Node
from pef_schema.verify_rules import Report

_SHAPES: dict[str, tuple[int, ...]] = {
    "_adaptive_avg_pool2d": (1,),
    "_adaptive_avg_pool3d": (1,),
    "_reshape_alias": (1,),
    "_reshape_alias_copy": (1,),
    "_reshape_copy": (1,),
    "_unsafe_view": (1,),
    "_upsample_bicubic2d_aa": (1,),
    "_upsample_bilinear2d_aa": (1,),
    "_upsample_nearest_exact1d": (1,),
    "_upsample_nearest_exact2d": (1,),
    "_upsample_nearest_exact3d": (1,),
    "adaptive_avg_pool1d": (1,),
    "adaptive_avg_pool2d": (1,),
    "adaptive_avg_pool3d": (1,),
    "adaptive_max_pool1d": (1,),
    "adaptive_max_pool2d": (1,),
    "adaptive_max_pool3d": (1,),
    "affine_grid_generator": (1,),
    "as_strided": (1,),
    "as_strided_copy": (1,),
    "broadcast_to": (1,),
    "col2im": (1,),
    "empty": (0,),
    "empty_permuted": (0,),
    "empty_strided": (0,),
    "expand": (1,),
    "expand_copy": (1,),
    "eye": (0, 1),
    "fractional_max_pool2d": (2,),
    "fractional_max_pool3d": (2,),
    "full": (0,),
    "max_unpool2d": (2,),
    "max_unpool3d": (2,),
    "new_empty": (1,),
    "new_empty_strided": (1,),
    "new_full": (1,),
    "new_ones": (1,),
    "new_zeros": (1,),
    "ones": (0,),
    "rand": (0,),
    "randn": (0,),
    "repeat": (1,),
    "reshape": (1,),
    "resize": (1,),
    "sum_to_size": (1,),
    "tile": (1,),
    "tril_indices": (0, 1),
    "triu_indices": (0, 1),
    "unflatten": (2,),
    "upsample_bicubic2d": (1,),
    "upsample_bilinear2d": (1,),
    "upsample_linear1d": (1,),
    "upsample_nearest1d": (1,),
    "upsample_nearest2d": (1,),
    "upsample_nearest3d": (1,),
    "upsample_trilinear3d": (1,),
    "view": (1,),
    "view_copy": (1,),
    "zeros": (0,),
}  # fmt: skip
"""Positions of the arguments that together are the sizes of one tensor, by operation."""

_COUNTS: dict[str, tuple[int, ...]] = {
    "arange": (0, 1, 2),
    "bartlett_window": (0,),
    "bincount": (2,),
    "blackman_window": (0,),
    "constant_pad_nd": (1,),
    "diag_embed": (1,),
    "diagflat": (1,),
    "hamming_window": (0,),
    "hann_window": (0,),
    "histc": (1,),
    "kaiser_window": (0,),
    "linspace": (2,),
    "logspace": (2,),
    "multinomial": (1,),
    "one_hot": (1,),
    "pad": (1,),
    "randperm": (0,),
    "repeat_interleave": (1,),
    "split_with_sizes": (1,),
    "split_with_sizes_copy": (1,),
    "vander": (1,),
}
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
        given = [node.args[i] for i in shapes if i < len(node.args)]
        given += [arg for key, arg in node.kwargs if key in _SHAPE_NAMES]
        # -1 stands for a size that follows from the others; torch's check of others is elsewhere.
        sizes = tuple([abs(size) for size in _integers(given)])
        if problem := report.shape(sizes, 1):
            report.add(f"{where}: {node.op} asks for {problem}")
    if counts is not None:
        given = [node.args[i] for i in counts if i < len(node.args)]
        given += [arg for key, arg in node.kwargs if key in _COUNT_NAMES]
        for number in _numbers(given):
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
    found: list[int | float] = []
    # Not by recursion: how deep lists are nested is checked elsewhere, and later.
    pending = [*args][::-1]
    while pending:
        arg = pending.pop()
        if isinstance(arg, tuple):
            pending += arg[::-1]
        elif isinstance(arg, (int, float)) and not isinstance(arg, (bool, DType)):
            found.append(arg)
    return found
