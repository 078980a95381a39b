"""Arguments and results of the nodes of an exported graph as plain data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from pef_schema.program import Arg, DType
from samba.tracer.errors import TraceError
from samba.tracer.names import node_line
from samba.tracer.traced import TO_DTYPE

DROPPED_KWARGS = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
"""Keyword arguments that mean nothing on the device."""


def plain_argument(
    arg: Any, node: torch.fx.Node, of: Callable[[torch.fx.Node], Arg], *, where: str
) -> Arg:
    """An argument of a node as a PEF holds it.

    Args:
        arg: The argument.
        node: Whose argument it is.
        of: What stands for another node.
        where: The place to name if the node has no line.

    Raises:
        TraceError: A PEF cannot hold it.
    """
    if isinstance(arg, torch.fx.Node):
        return of(arg)
    if isinstance(arg, (list, tuple)):
        return tuple(plain_argument(a, node, of, where=where) for a in arg)
    if arg is None or isinstance(arg, (bool, int, float, complex, str)):
        return arg
    if isinstance(arg, torch.dtype):
        return plain_dtype(arg, str(node.target))
    if isinstance(arg, (torch.device, torch.layout, torch.memory_format)):
        return None
    raise TraceError(
        where=node_line(node) or where,
        reason=f"{node.target} takes {type(arg).__name__} {arg!r}, which a PEF cannot hold",
        hint="Shapes and settings must be fixed numbers when the model is compiled.",
    )


def used_results(node: torch.fx.Node) -> Iterator[torch.Tensor | None]:
    """The results of a node that has several; None for those that nothing takes."""
    used = {cast(int, user.args[1]) for user in node.users if user.target is operator.getitem}
    for i, value in enumerate(node.meta["val"]):
        yield value if i in used and isinstance(value, torch.Tensor) else None


def plain_dtype(dtype: torch.dtype, where: str) -> DType:
    """An element type as a PEF holds it.

    Raises:
        TraceError: The device does not have it.
    """
    try:
        return TO_DTYPE[dtype]
    except KeyError:
        raise TraceError(
            where=where,
            reason=f"dtype {dtype} is not supported",
            hint=f"Supported: {', '.join(sorted(str(d) for d in TO_DTYPE))}.",
        ) from None
