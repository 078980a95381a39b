"""The slow reference: a graph, or what is constant in it, executed op by op in plain torch.

It defines what is right for a graph: no sections, no fusion, no jax. Random ops
run with a rate of 0, where they have one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from emulator.op_facts.names import CASTS, CHECKED_BRANCH, NEXT_SEED
from emulator.op_facts.table import op_facts
from pef_schema.program import Arg, DType, Gradient, Graph, Node, Ref, Role, Value
from samba.tracer.traced import FROM_DTYPE, Traced


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    del non_blocking
    return source.to(x.dtype).expand(x.shape).clone()


def _checked_branch(failed: torch.Tensor, condition: torch.Tensor, outcome: bool) -> torch.Tensor:
    return failed | (condition.reshape(()).bool() != outcome)


_INSTEAD: dict[str, Any] = {
    CHECKED_BRANCH: _checked_branch,
    # Views whose strides a graph does not keep: memory formats are dropped when it is traced.
    "aten.view.default": torch.reshape,
    "aten._unsafe_view.default": torch.reshape,
    "aten.as_strided.default": lambda x, *form: x.contiguous().as_strided(*form),
    "aten.as_strided_scatter.default": lambda x, *rest: torch.as_strided_scatter(
        x.contiguous(), *rest
    ),
    # Torch differentiates the form in place only.
    "aten.copy.default": _copy,
}
"""What runs in the place of an operation."""


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
        for index, value in zip(node.outputs, run_node(node, env, graph), strict=False):
            if index >= 0:
                env[index] = value
    return env


def run_node(
    node: Node, env: Mapping[int, Any], graph: Graph | Gradient | None = None
) -> tuple[Any, ...]:
    """Execute one node with torch.

    Args:
        node: The node; its seed is not read.
        env: Tensors by value index.
        graph: Its graph, for custom gradients.

    Returns:
        Its results, in the order of its outputs.
    """
    kwargs = {k: _resolve(a, env) for k, a in node.kwargs if k not in ("seed", "stream")}
    args = [_resolve(a, env) for a in node.args]
    gradient = graph.gradient_of(node) if isinstance(graph, Graph) else None
    if gradient is not None:
        _, results, inputs, reads = args
        return _Custom.apply(gradient, len(results), len(inputs), *results, *inputs, *reads)
    if node.op in CASTS:
        return (round_to_bfloat16(args[0], args[1]),)
    if op_facts()[node.op].random:
        args = [float(a) if isinstance(a, torch.Tensor) and a.dim() == 0 else a for a in args]
    function = _INSTEAD.get(node.op)
    if function is None:
        namespace, packet, overload = node.op.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    result = function(*args, **kwargs)
    return tuple(map(_read, result if isinstance(result, (tuple, list)) else (result,)))


def _read(result: Any) -> Any:
    """A result of which nothing is left to be done when it is read."""
    if isinstance(result, torch.Tensor) and (result.is_conj() or result.is_neg()):
        return result.resolve_conj().resolve_neg()
    return result


class _Rounded(torch.autograd.Function):
    """Rounds values, and their gradients in the same way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mode: str) -> torch.Tensor:
        ctx.mode = mode
        return _rounded(x, mode)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _rounded(grads[0], ctx.mode), None


class _Custom(torch.autograd.Function):
    """Passes on results whose gradient the graph defines."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Gradient, results: int, inputs: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.gradient, ctx.counts = gradient, (results, inputs, len(tensors) - results - inputs)
        ctx.save_for_backward(*tensors[results + inputs :])
        return tuple(t.clone() for t in tensors[:results])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        gradient: Gradient = ctx.gradient
        results, _, reads = ctx.counts
        env: dict[int, Any] = dict(zip(gradient.inputs, (*grads, *ctx.saved_tensors), strict=True))
        for node in gradient.nodes:
            for index, value in zip(node.outputs, run_node(node, env), strict=False):
                if index >= 0:
                    env[index] = value
        gradients = (env[value] for value in gradient.outputs)
        return None, None, None, *(None,) * results, *gradients, *(None,) * reads


def round_to_bfloat16(x: torch.Tensor, mode: str) -> torch.Tensor:
    """Round to what bfloat16 can hold, keeping the dtype.

    Args:
        x: Any floating dtype.
        mode: ``"truncation"``, or else to the nearest; a host has no stream of random numbers.

    Returns:
        A new tensor; its gradient is rounded in the same way.
    """
    return _Rounded.apply(x, mode)


def _rounded(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode != "truncation":
        return x.to(torch.bfloat16).to(x.dtype)
    bits = x.to(torch.float32).contiguous().view(torch.int32)
    cut = (bits & -65536).view(torch.float32).to(x.dtype)
    return torch.where(x.isfinite(), cut, x)


def _resolve(arg: Arg, env: Mapping[int, Any]) -> Any:
    if isinstance(arg, Ref):
        return env[arg.value]
    if isinstance(arg, DType):
        return FROM_DTYPE[arg]
    if isinstance(arg, tuple):
        return [_resolve(a, env) for a in arg]
    return arg


def constant_values(traced: Traced) -> dict[int, torch.Tensor]:
    """Values of a graph that depend neither on inputs and weights nor on random numbers.

    A buffer that the graph does not update counts as a constant.

    Args:
        traced: The graph.

    Returns:
        Their contents by value index.
    """
    updated = {source for _, source in traced.updates}
    known: dict[int, Any] = {
        s.value: as_plain(s.tensor)
        for s in traced.sources
        if (s.role is Role.CONSTANT or (s.role is Role.BUFFER and s.value not in updated))
        and s.tensor is not None
        and getattr(s.tensor, "_has_data", True)
    }
    facts = op_facts()
    with torch.no_grad():
        for node in traced.nodes:
            fact = facts.get(node.op)
            if node.op == NEXT_SEED or fact is None or fact.random:
                continue
            if all(ref in known for ref in node.refs()):
                try:
                    results = run_node(node, known)
                except (RuntimeError, TypeError, AttributeError):
                    continue  # it stays a node, and is compared as one
                for index, result in zip(node.outputs, results, strict=False):
                    if index >= 0:
                        known[index] = result
    return known


def without_constant_parts(traced: Traced) -> Graph:
    """The graph of a trace in which each constant value is a source that is named by its contents.

    Args:
        traced: The trace.

    Returns:
        A graph to compare; it cannot be run.
    """
    known = constant_values(traced)
    graph = traced.graph()
    first: dict[str, int] = {}
    same: dict[int, int] = {}
    values = list(graph.values)
    for index, tensor in known.items():
        name = f"constant {_digest(tensor)}"
        same[index] = first.setdefault(name, index)
        values[index] = replace(values[index], name=name)

    def of(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(same.get(arg.value, arg.value))
        if isinstance(arg, tuple):
            return tuple([of(item) for item in arg])
        return arg

    def moved(node: Node) -> Node:
        kwargs = tuple([(name, of(arg)) for name, arg in node.kwargs])
        return replace(node, args=tuple([of(arg) for arg in node.args]), kwargs=kwargs)

    renamed: tuple[Value, ...] = tuple(values)
    return replace(
        graph,
        values=renamed,
        nodes=tuple([moved(n) for n in graph.nodes if not all(v in known for v in _results(n))]),
        outputs=tuple(
            [replace(o, name="", value=same.get(o.value, o.value)) for o in graph.outputs]
        ),
        updates=tuple([replace(u, value=same.get(u.value, u.value)) for u in graph.updates]),
    )


def _results(node: Node) -> list[int]:
    return [index for index in node.outputs if index >= 0] or [-1]


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of any class."""
    return tensor.detach().as_subclass(torch.Tensor)


def _digest(tensor: torch.Tensor) -> str:
    plain = as_plain(tensor).contiguous()
    contents = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    form = f"{list(plain.shape)} {plain.dtype}"
    return hashlib.sha256(form.encode() + contents).hexdigest()
