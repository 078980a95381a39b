"""What a condition is where all numbers are finite."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.node import map_arg

from samba.tracer.torch_internals import is_operation, outside_of_trace

__all__ = ["where_finite"]

_FINITE: Mapping[str, bool] = {
    "isfinite": True,
    "isnan": False,
    "isinf": False,
    "isposinf": False,
    "isneginf": False,
}
"""Functions that ask whether numbers are finite, and what they say where all are."""


_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""Comparisons: with infinity, all finite numbers have the same outcome."""


class _Other(Exception):
    """A condition depends on other values, too."""


def where_finite(node: torch.fx.Node) -> bool | None:
    """The truth of a condition where all numbers that it looks at are finite.

    Args:
        node: The node of the condition, of one element.

    Returns:
        None if the condition looks at more than that.

    Example:
        >>> graph = torch.fx.Graph()
        >>> x = graph.placeholder("x")
        >>> x.meta["val"] = torch.zeros(3)
        >>> nan = graph.call_function(torch.ops.aten.isnan.default, (x,))
        >>> nan.meta["val"] = torch.zeros(3, dtype=torch.bool)
        >>> found = graph.call_function(torch.ops.aten.any.default, (nan,))
        >>> where_finite(found)
        False
    """
    values: dict[torch.fx.Node, Any] = {}
    with outside_of_trace(), torch.no_grad():
        try:
            found = _value(node, values)
            return bool(found) if values and found.numel() == 1 else None
        except (_Other, RuntimeError, TypeError, ValueError, AttributeError, RecursionError):
            return None


def _value(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    if node in values:
        return values[node]
    target: Any = node.target
    if node.op != "call_function" or not (is_operation(target) or target is operator.getitem):
        raise _Other
    asked = _asked(node)
    if asked is not None:
        # Without memory of its own: it may be as large as the tensor that is looked at.
        made = torch.tensor(asked).expand(tuple(node.meta["val"].shape))
    else:
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
            raise _Other
        if not node.all_input_nodes:
            raise _Other
        for source in node.all_input_nodes:
            _value(source, values)
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        made = target(*args, **kwargs)
    values[node] = made
    return made


def _asked(node: torch.fx.Node) -> bool | None:
    """What an operation says where all numbers are finite; None if that is not what it asks."""
    namespace, _, rest = str(node.target).partition(".")
    name = rest.partition(".")[0]
    if namespace != "aten":
        return None
    if name in ("ne", "eq") and len(node.args) == 2 and node.args[0] is node.args[1]:
        return name == "eq"  # only NaN differs from itself
    limit = node.args[1] if len(node.args) == 2 and name in _COMPARED else None
    if isinstance(limit, float) and math.isinf(limit):
        return _COMPARED[name](0.0, limit)
    return _FINITE.get(name)
