"""Type promotion, made visible in the graph.

Two parts. :class:`MixedPrecision` acts while ``forward`` is traced: where eager torch
refuses mixed floating dtypes (a bfloat16 input against float32 weights), it casts
to the promoted type first, as SambaFlow does; :func:`promoted` does the same for eager
calls with SambaTensors. :func:`insert_casts` acts on the
exported graph: every tensor argument of a promoting operation gets an explicit
cast to the type that torch computes in, so that no lowering has to promote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.overrides import TorchFunctionMode

from samba.tracer.dropout import DROPOUTS, keep_dropout
from samba.tracer.rewrite import rewritten

_MIXED_FLOATS = frozenset(
    {
        F.linear,
        F.bilinear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        F.layer_norm,
        F.group_norm,
        F.scaled_dot_product_attention,
        torch.addmm,
        torch.addbmm,
        torch.addmv,
        torch.baddbmm,
        torch.bmm,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.dot,
        torch.einsum,
        torch.lstm,
        torch.gru,
        torch.matmul,
        torch.mm,
        torch.mv,
        torch.Tensor.addmm,
        torch.Tensor.baddbmm,
        torch.Tensor.bmm,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.Tensor.__rmatmul__,
        torch.Tensor.mm,
        torch.Tensor.mv,
    }
)
"""Functions that eager torch refuses for mixed floating dtypes and that promote here."""

_LABELS = {F.cross_entropy: 1, F.nll_loss: 1}
_INDICES = {F.embedding: 0}
_NARROW = (torch.int8, torch.uint8, torch.int16)


def _floats(tree: Any) -> list[torch.dtype]:
    if isinstance(tree, torch.Tensor):
        return [tree.dtype] if tree.is_floating_point() else []
    if isinstance(tree, (list, tuple)):
        return [d for item in tree for d in _floats(item)]
    if isinstance(tree, dict):
        return [d for item in tree.values() for d in _floats(item)]
    return []


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.to(dtype) if tree.is_floating_point() else tree
    if isinstance(tree, (list, tuple)):
        return type(tree)(_cast(item, dtype) for item in tree)
    if isinstance(tree, dict):
        return {k: _cast(v, dtype) for k, v in tree.items()}
    return tree


def _widen_labels(labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Narrow class labels as int64; negative int16 ones are an unsigned range's upper half."""
    wide = labels.to(torch.int64)
    if labels.dtype != torch.int16:
        return wide
    wrapped = (wide < 0) & (wide != ignore_index)
    return torch.where(wrapped, wide + 65536, wide)


class MixedPrecision(TorchFunctionMode):
    """While active, ``forward`` leaves a graph with promoted types and with every dropout.

    Functions that need one floating dtype get their arguments promoted to it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            kept = keep_dropout(func, args, kwargs)
            if kept is not None:
                return kept
        args, kwargs = promoted(func, args, kwargs)
        return rewritten(func)(*args, **kwargs)


def promoted(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a torch function in types that it takes together.

    Args:
        func: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        Both, cast where eager torch refuses the mixture, else the same objects.
    """
    if func in _MIXED_FLOATS:
        dtypes = _floats((args, kwargs))
        if len(set(dtypes)) > 1:
            common = dtypes[0]
            for dtype in dtypes[1:]:
                common = torch.promote_types(common, dtype)
            args = _cast(args, common)
            kwargs = {k: _cast(v, common) for k, v in kwargs.items()}
    elif func in _LABELS and len(args) > _LABELS[func]:
        labels = args[1]
        if labels.dtype in (*_NARROW, torch.int32) and not labels.is_floating_point():
            labels = _widen_labels(labels, kwargs.get("ignore_index", -100))
            args = (args[0], labels, *args[2:])
    elif func in _INDICES and args and args[0].dtype in _NARROW:
        args = (args[0].to(torch.int32), *args[1:])
    return args, kwargs


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
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    packet = target._overloadpacket.__name__
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
        elif packet in _PROMOTES_SCALARS and isinstance(arg, (bool, int, float)):
            operands.append(arg)
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    if not tensors or (len({t.dtype for t in tensors}) == 1 and len(operands) == len(tensors)):
        return None
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    return elementwise_dtypes(*operands, type_promotion_kind=kind)[1]


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
    return isinstance(target, torch._ops.OpOverload) and target._overloadpacket.__name__ == "where"
