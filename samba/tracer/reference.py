"""The slow reference: a graph executed op by op in plain torch.

It defines what is right for a graph: no sections, no fusion, no jax. Random ops
run with a rate of 0, where they have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from emulator.ops.registry import load_ops
from pef_schema.program import Arg, DType, Graph, Node, Ref
from samba.tracer.convert import NEXT_SEED
from samba.tracer.traced import FROM_DTYPE

_COPYING: dict[str, Any] = {
    "aten.view.default": torch.reshape,
    "aten._unsafe_view.default": torch.reshape,
}
"""Views whose strides a graph does not keep: memory formats are dropped when a model is traced."""


def run_reference(graph: Graph, sources: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Execute every node of a graph with torch.

    Args:
        graph: A traced or compiled graph.
        sources: Tensors of the values that no node produces. Those that require a gradient
            take part in autograd.

    Returns:
        All values by index.
    """
    env: dict[int, Any] = dict(sources)
    for node in graph.nodes:
        if node.op == NEXT_SEED:
            continue
        for index, value in zip(node.outputs, run_node(node, env), strict=False):
            if index >= 0:
                env[index] = value
    return env


def run_node(node: Node, env: Mapping[int, Any]) -> tuple[Any, ...]:
    """Execute one node with torch.

    Args:
        node: The node; its seed is not read.
        env: Tensors by value index.

    Returns:
        Its results, in the order of its outputs.
    """
    kwargs = {k: _resolve(a, env) for k, a in node.kwargs if k not in ("seed", "stream")}
    args = [_resolve(a, env) for a in node.args]
    if load_ops()[node.op].random:
        args = [float(a) if isinstance(a, torch.Tensor) and a.dim() == 0 else a for a in args]
    function = _COPYING.get(node.op)
    if function is None:
        namespace, packet, overload = node.op.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    result = function(*args, **kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _resolve(arg: Arg, env: Mapping[int, Any]) -> Any:
    if isinstance(arg, Ref):
        return env[arg.value]
    if isinstance(arg, DType):
        return FROM_DTYPE[arg]
    if isinstance(arg, tuple):
        return [_resolve(a, env) for a in arg]
    return arg
