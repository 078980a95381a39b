"""Type promotion, made visible in the graph.

Every tensor argument of a promoting operation gets an explicit cast to the type that torch
computes in, so that no lowering has to promote.
"""

from __future__ import annotations

from typing import Any

import torch

from samba.tracer.torch_internals import is_operation, packet_of, promoted_dtype

_PROMOTES_SCALARS = frozenset(
    (
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "true_divide",
        "floor_divide",
        "remainder",
        "fmod",
        "pow",
        "float_power",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "clamp",
        "clamp_min",
        "clamp_max",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "atan2",
        "xlogy",
        "where",
        "lerp",
        "addcmul",
        "addcdiv",
        "logaddexp",
        "logaddexp2",
        "hypot",
        "copysign",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "special_xlog1py",
    )
)
_CATENATES = frozenset(("cat", "stack", "hstack", "vstack", "dstack", "concat", "column_stack"))


def _promotion(node: torch.fx.Node) -> torch.dtype | None:
    """The dtype all tensor arguments of ``node`` are cast to, None to leave them alone."""
    target = node.target
    if not is_operation(target) or target.namespace != "aten":
        return None
    packet = packet_of(target)
    if packet in _CATENATES:
        value = node.meta["val"]
        return value.dtype if isinstance(value, torch.Tensor) else None
    if torch.Tag.pointwise not in target.tags and packet not in _PROMOTES_SCALARS:
        return None
    if packet in ("masked_fill", "copy", "fill", "_to_copy", "native_dropout", "dropout"):
        return None
    operands: list[Any] = []
    for arg in _operands(node, packet):
        if isinstance(arg, torch.fx.Node):
            operands.append(arg.meta["val"])
        elif packet in _PROMOTES_SCALARS and isinstance(arg, (bool, int, float, complex)):
            operands.append(arg)
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    if not tensors or (len({t.dtype for t in tensors}) == 1 and len(operands) == len(tensors)):
        return None
    return promoted_dtype(operands)


def _operands(node: torch.fx.Node, packet: str) -> list[Any]:
    args = list(node.args)
    if packet == "where":
        return args[1:]
    if packet in ("add", "sub", "rsub"):
        return args[:2]
    return args


_KEPT_META = ("nn_module_stack", "stack_trace", "custom")


def insert_casts(graph: torch.fx.Graph) -> None:
    """Insert ``aten._to_copy`` before every argument that torch would promote.

    Args:
        graph: An exported functional graph; changed in place.
    """
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        common = _promotion(node)
        if common is None:
            continue
        keep = node.args[:1] if _first_is_condition(node) else ()

        def cast(arg: torch.fx.Node, common=common, keep=keep, node=node) -> torch.fx.Node:
            value = arg.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.dtype == common or arg in keep:
                return arg
            with graph.inserting_before(node):
                new = graph.call_function(
                    torch.ops.aten._to_copy.default, (arg,), {"dtype": common}
                )
            new.meta = {k: v for k, v in node.meta.items() if k in _KEPT_META}
            new.meta["val"] = value.to(common)
            return new

        node.args = torch.fx.map_arg(node.args, cast)
        node.kwargs = torch.fx.map_arg(node.kwargs, cast)


def _first_is_condition(node: torch.fx.Node) -> bool:
    target = node.target
    return is_operation(target) and packet_of(target) == "where"
