"""Operations that compute each row from the same row of what they take, and their slopes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.fx import Node

from emulator.op_facts.table import facts_of
from samba.tracer.torch_internals import packet_of

_VIEWS = frozenset({"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"})
_MADE = frozenset(
    f"aten.{name}.default"
    for name in (
        *("zeros", "new_zeros", "full", "new_full", "ones", "zeros_like", "ones_like"),
        *("full_like", "dropout", "native_dropout"),
    )
)
"""Operations that make each element by itself, and that torch does not call pointwise."""
_MOVED = frozenset(
    f"aten.{name}"
    for name in (
        *("unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default"),
        *("permute.default", "transpose.int", "t.default", "expand.default"),
        *("select.int", "split.Tensor", "split_with_sizes.default", "chunk.default"),
        *("unbind.int", "sum.dim_IntList", "mean.dim", "amax.default", "amin.default"),
        *("argmax.default", "max.dim", "min.dim"),
    )
)
"""Operations whose result has the axis of rows only where they leave it whole."""
_ALONG = {
    "aten.softmax.int": 1,
    "aten._softmax.default": 1,
    "aten.log_softmax.int": 1,
    "aten._log_softmax.default": 1,
    "aten.cumsum.default": 1,
    "aten.topk.default": 2,
    "aten.sort.default": 1,
    "aten.slice.Tensor": 1,
    "aten.cat.default": 1,
    "aten.stack.default": 1,
}
"""Where operations that keep all axes take the one along which they mix."""
_DEFAULT_AXIS = {"aten.topk.default": -1, "aten.sort.default": -1}
GATHERS = frozenset({"aten.index.Tensor", "aten.index_select.default", "aten.embedding.default"})
"""Operations that take rows of a tensor at the places of a selection."""
_FINITE_SLOPES = frozenset(
    {
        *("_to_copy", "abs", "add", "celu", "clamp", "clamp_max", "clamp_min", "clone", "cos"),
        *("elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "maximum"),
        *("minimum", "mish", "mul", "neg", "relu", "relu6", "selu", "sigmoid", "silu", "sin"),
        *("softplus", "sub", "tanh", "threshold", "to", "where"),
    }
)
"""Pointwise operations whose values and slopes are finite at every finite number."""
A_FINITE_NUMBER = 0.5
"""Here value and slope of all pointwise operations are finite, except of those in ``_WITHIN``."""
_WITHIN = {"acosh": 1.5, "mvlgamma": 50.0, "special_zeta": 1.5}
"""Numbers at which value and slope of the other ones are finite."""


def arguments(node: Node) -> tuple[Any, ...]:
    """The arguments of a node, which its operation's schema says more about than their type."""
    return cast("tuple[Any, ...]", node.args)


def row_axis_kept(node: Node, values: Mapping[Node, Any], axes: Mapping[Node, int]) -> bool:
    """Whether each row of a node's results depends on that row of its arguments alone.

    Args:
        node: An operation whose results have rows.
        values: The tensors of all nodes, with the symbol of the number of rows in their shapes.
        axes: The axis of rows of the arguments that have one.

    Returns:
        False too for operations that are not known.
    """
    op, args = str(node.target), arguments(node)
    tags = getattr(node.target, "tags", ())
    if op in _MADE or op in _MOVED or torch.Tag.pointwise in tags:
        return True
    if facts_of(op).elements == "same":
        return True
    if op in _VIEWS:
        return _before(values[node]) == _before(values[args[0]])
    if op in _ALONG:
        return _along(node, op, values, axes)
    if op in ("aten.layer_norm.default", "aten.rms_norm.default"):
        source = args[0]
        inner = len(args[1])
        return list(axes) == [source] and axes[source] < values[source].dim() - inner
    if op in ("aten.linear.default", "aten.mm.default", "aten.matmul.default"):
        source = args[0]
        return list(axes) == [source] and axes[source] < values[source].dim() - 1
    if op == "aten.addmm.default":
        return list(axes) == [args[1]] and axes[args[1]] == 0
    if op == "aten.bmm.default":
        left, right = args
        if set(axes) == {left, right}:
            return axes[left] == axes[right] == 0
        return list(axes) == [left] and axes[left] == 1
    if op in GATHERS:
        return args[0] not in axes
    return False


def finite_slope_at(target: Any) -> float | None:
    """A number at which a pointwise operation has a finite value and a finite slope.

    Args:
        target: The operation.

    Returns:
        None where every finite number will do.
    """
    name = packet_of(target)
    if torch.Tag.pointwise not in target.tags or name in _FINITE_SLOPES:
        return None
    return _WITHIN.get(name, A_FINITE_NUMBER)


def _before(value: torch.Tensor) -> int:
    """How many times all rows are run through."""
    sizes = []
    for size in value.shape:
        if isinstance(size, torch.SymInt):
            return math.prod(sizes)
        sizes.append(size)
    return -1


def _along(node: Node, op: str, values: Mapping[Node, Any], axes: Mapping[Node, int]) -> bool:
    position, args = _ALONG[op], arguments(node)
    dim = _DEFAULT_AXIS.get(op, 0)
    if len(args) > position:
        dim = args[position]
    elif "dim" in node.kwargs:
        dim = cast("int", node.kwargs["dim"])
    for source, axis in axes.items():
        if op != "aten.stack.default" and dim % values[source].dim() == axis:
            return False
    # Of several, all must have rows: a constant beside them would have to have as many.
    return op not in ("aten.cat.default", "aten.stack.default") or set(axes) == set(args[0])
