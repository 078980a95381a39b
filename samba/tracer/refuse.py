"""Search of an exported graph for what the device cannot hold, before it is decomposed."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from samba.support.naming import root_name
from samba.tensor.views import foreign_layout
from samba.tracer.errors import TraceError, UnsupportedOp, UnsupportedOps
from samba.tracer.names import calling_line, node_line
from samba.tracer.torch_internals import FakeTensor
from samba.tracer.traced import TO_DTYPE

DEPENDS_ON_DATA = "the shape of its result depends on data"

_IN_FIXED_POINT = (
    *("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_bicubic2d"),
    *("aten.upsample_trilinear3d", "aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa"),
)
"""How the names of operations begin that torch computes of uint8 with whole weights."""

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def refused_ops(graph: torch.fx.Graph) -> tuple[dict[torch.fx.Node, str], set[torch.fx.Node]]:
    """Nodes that no lowering can help, each with the reason.

    Only the nodes where the trouble starts: what merely computes on their results is left out.

    Args:
        graph: An exported functional graph.

    Returns:
        Node to reason, in the order of the graph; and all nodes that take or give what the
        device cannot hold.
    """
    refused: dict[torch.fx.Node, str] = {}
    foreign: set[torch.fx.Node] = set()
    touched: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        reason = _reason(node)
        if reason:
            foreign.add(node)
        if any(source in foreign for source in node.all_input_nodes):
            touched.add(node)
        elif reason:
            refused[node] = reason
    return refused, touched | foreign


def _reason(node: torch.fx.Node) -> str:
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if isinstance(value, _NUMBERS):
            return "takes a number out of a tensor"
        if not isinstance(value, torch.Tensor):
            continue
        reason = foreign_reason(value)
        if reason:
            return reason
        if value.dtype not in TO_DTYPE:
            kind = "complex numbers" if value.is_complex() else str(value.dtype)
            return f"{kind} are not supported"
        if any(isinstance(size, torch.SymInt) for size in value.shape):
            return DEPENDS_ON_DATA
        if value.dtype is torch.uint8 and _resamples(node, value):
            return "torch interpolates uint8 in fixed point: interpolate x.float(), and round that"
    return ""


def _resamples(node: torch.fx.Node, result: torch.Tensor) -> bool:
    """Whether a node interpolates between elements; one that keeps the size copies them."""
    if not str(node.target).startswith(_IN_FIXED_POINT):
        return False
    return node.all_input_nodes[0].meta["val"].shape != result.shape


def foreign_reason(tensor: torch.Tensor) -> str:
    """Why a tensor is not one block of plain numbers; empty if it is."""
    kind = foreign_layout(tensor)
    return f"{kind} tensors are not supported" if kind else ""


def refuse_inputs(model: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise unless all inputs are plain.

    Args:
        model: Name of the model.
        tensors: Names and tensors.

    Raises:
        UnsupportedOps: If some are sparse, nested or quantized.
    """
    reasons = [(name, foreign_reason(tensor)) for name, tensor in tensors]
    bad = [
        UnsupportedOp(name=f"input {name}", count=1, lines=(), reason=reason)
        for name, reason in reasons
        if reason
    ]
    if bad:
        raise UnsupportedOps(model=model, ops=bad)


def refuse_constants(model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> None:
    """Raise unless all tensors that ``forward`` uses and did not make are plain.

    Torch's graph does not tell the lines of operations on the others.

    Args:
        model: The model.
        tensors: What an operation takes, while it is traced.

    Raises:
        UnsupportedOps: If one is sparse, nested or quantized; with the line that uses it.
    """
    for tensor in tensors:
        reason = "" if tensor.layout is torch.strided else foreign_reason(tensor)
        if reason and (not isinstance(tensor, FakeTensor) or "_path" in vars(tensor)):
            name = vars(tensor).get("_path", "")
            op = UnsupportedOp(
                name=f"constant {name}" if name else "a constant",
                count=1,
                lines=(calling_line(),),
                reason=f"{reason}: make it dense before, with to_dense()",
            )
            raise UnsupportedOps(model=root_name(model), ops=[op])


def refuse_scripted(model: torch.nn.Module) -> None:
    """Raise if a module of a model is scripted: its code is not Python any more.

    Raises:
        TraceError: With the paths of such modules.
    """
    scripted = [
        path or type(model).__name__
        for path, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    if scripted:
        raise TraceError(
            where=f"model {root_name(model)}",
            reason=f"torch.jit has scripted or traced {scripted[0]}, so its code is not Python",
            hint="Give samba.session.compile the module that was given to torch.jit.",
        )


def describe(nodes: Iterable[tuple[torch.fx.Node, str]]) -> list[UnsupportedOp]:
    """Nodes as entries of an error: one per operation and reason, most frequent first."""
    counts: dict[tuple[str, str], int] = {}
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for node, reason in nodes:
        name = f"input {node.name}" if node.op == "placeholder" else str(node.target)
        key = (name, reason)
        counts[key] = counts.get(key, 0) + 1
        line = node_line(node)
        if line:
            lines.setdefault(key, {})[line] = None
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        UnsupportedOp(name=key[0], count=count, lines=tuple(lines.get(key, ())), reason=key[1])
        for key, count in ranked
    ]
