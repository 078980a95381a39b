"""What a comparison starts from, and one operation, forward and backward, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from emulator.lowering.section import gradient_targets
from emulator.lowering.single_nodes import SingleNodes
from pef_schema.program import Graph, Node, Role
from samba.comparison.judge import widest
from samba.tensor.views import view_as_numpy, view_as_torch
from samba.tracer import reference
from samba.tracer.traced import Source, Traced, carries_gradient


def source_values(traced: Traced) -> tuple[dict[int, torch.Tensor], list[str]]:
    """Plain copies of everything that a graph takes from outside.

    Args:
        traced: The traced model.

    Returns:
        Tensors by value index, with dropout rates of 0 and a seed of 0, and notes on that.
    """
    found: dict[int, torch.Tensor] = {}
    for source in traced.sources:
        if source.role is Role.SEED:
            found[source.value] = torch.zeros(2, dtype=torch.uint32)
        elif source.role is Role.ARGIN:
            found[source.value] = torch.zeros((), dtype=torch.float64)
        elif source.role is Role.METRIC:
            found[source.value] = torch.zeros((), dtype=torch.bool)
        else:
            found[source.value] = _plain(source)
    rates = any(s.role is Role.ARGIN and s.default != 0.0 for s in traced.sources)
    return found, ["dropout is off on both sides"] if rates else []


def _plain(source: Source) -> torch.Tensor:
    tensor = source.tensor
    if tensor is None:
        raise ValueError(f"source {source.name} of role {source.role.name} has no tensor")
    if not getattr(tensor, "has_data", True):
        tensor = tensor.torch_tensor()  # pyright: ignore[reportAttributeAccessIssue]  # a SambaTensor
    return tensor.detach().as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)


Tensors = Mapping[int, torch.Tensor]
"""Tensors by value index."""


def host_forward(graph: Graph, node: Node, env: Tensors) -> dict[int, torch.Tensor]:
    """Execute a node with torch."""
    with torch.no_grad():
        results = reference.run_node(node, env, graph)
    return {v: r.detach() for v, r in zip(node.outputs, results, strict=False) if v >= 0}


def host_backward(
    graph: Graph, node: Node, env: Tensors, cotangents: Tensors
) -> dict[int, torch.Tensor]:
    """Differentiate a node with torch.

    Args:
        graph: Its graph.
        node: The node.
        env: Values that it takes.
        cotangents: Gradients of its results; missing ones are zeros.

    Returns:
        Gradients by value that it takes, without those that torch says are none.
    """
    targets = gradient_targets(graph, node)
    leaves = {v: env[v].detach().clone().requires_grad_() for v in targets}
    with torch.enable_grad():
        results = reference.run_node(node, {**env, **leaves}, graph)
    pairs = [
        (result, cotangents[v].to(result.dtype))
        for v, result in zip(node.outputs, results, strict=False)
        if v in cotangents and isinstance(result, torch.Tensor) and result.requires_grad
    ]
    if not pairs:
        return {}
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        list(leaves.values()),
        [cotangent for _, cotangent in pairs],
        allow_unused=True,
    )
    return {
        v: g.resolve_conj().resolve_neg()
        for v, g in zip(targets, found, strict=True)
        if g is not None
    }


def exactly(compute: Callable[[dict[int, torch.Tensor]], Tensors], env: Tensors) -> Tensors:
    """Run one of the above on float64 copies of what it takes; empty if torch cannot."""
    wide = {v: widest(t) if carries_gradient(t) else t for v, t in env.items()}
    try:
        return compute(wide)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return {}


class DeviceNodes:
    """Runs single nodes as the device does.

    Args:
        graph: Their graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = SingleNodes(graph)

    def forward(self, node: Node, env: Tensors) -> dict[int, torch.Tensor]:
        """Execute a node on tensors by value; returns its results by value."""
        given = {v: view_as_numpy(env[v]) for v in node.refs()}
        return {v: view_as_torch(a) for v, a in self._nodes.forward(node, given).items()}

    def backward(self, node: Node, env: Tensors, cotangents: Tensors) -> dict[int, torch.Tensor]:
        """Differentiate a node; returns gradients by value that it takes."""
        given = {v: view_as_numpy(env[v]) for v in node.refs()}
        seeds = {v: view_as_numpy(t) for v, t in cotangents.items()}
        found = self._nodes.backward(node, given, seeds)
        return {v: view_as_torch(a) for v, a in found.items()}
