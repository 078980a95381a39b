"""What torch refuses to compute of nothing: operations on tensors that have no elements.

On fake tensors torch lets through some of what its kernels refuse: the largest of no elements, an
index into no rows. A tensor without elements costs nothing, so the kernels themselves are asked.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from samba.tracer.errors import ShapeMismatch
from samba.tracer.names import node_line
from samba.tracer.torch_internals import is_operation, tree_leaves, tree_map

_MOST_BYTES = 1 << 26
"""Of all arguments of an operation: with more it is not asked."""

_UNASKED = (
    *("aten.lu_unpack", "aten.native_batch_norm", "aten._native_batch_norm"),
    *("aten._batch_norm_with_update", "aten.segment_reduce", "aten.linalg_ldl_solve"),
)
"""How the names of operations begin that read beside what they are given, or check its values."""


def refuse_of_nothing(graph: torch.fx.Graph, model: str) -> None:
    """Raise if an operation of a graph is one that torch refuses for the sizes of its arguments.

    Args:
        graph: An exported functional graph.
        model: Name of the model.

    Raises:
        ShapeMismatch: With the line, and what torch says.
    """
    for node in graph.nodes:
        if node.op == "call_function" and _takes_nothing(node):
            reason = _refusal(node)
            if reason:
                raise ShapeMismatch(
                    where=node_line(node) or f"model {model}",
                    reason=f"{node.target}: {reason}",
                    hint="Torch refuses it for tensors without elements. Check the shapes of the "
                    "inputs given for tracing: they are the shapes that the program is compiled "
                    "for.",
                )


def _takes_nothing(node: torch.fx.Node) -> bool:
    return any(
        isinstance(value, torch.Tensor) and any(type(n) is int and not n for n in value.shape)
        for value in (source.meta.get("val") for source in node.all_input_nodes)
    )


def _refusal(node: torch.fx.Node) -> str:
    """What torch's kernels say to arguments of these sizes; empty if they take them."""
    target = node.target
    if not is_operation(target) or str(target).startswith(_UNASKED):
        return ""
    given: Any = tree_map(_value, (node.args, dict(node.kwargs)))
    leaves = tree_leaves(given)
    if any(isinstance(x, (torch.fx.Node, torch.SymInt, torch.SymFloat)) for x in leaves):
        return ""
    fake = [x for x in leaves if isinstance(x, torch.Tensor)]
    if any(x.layout is not torch.strided for x in fake):
        return ""
    if sum(x.numel() * x.element_size() for x in fake) > _MOST_BYTES:
        return ""
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            args, kwargs = tree_map(_real, given)
            target(*args, **kwargs)
    except NotImplementedError:
        return ""  # it has no kernel of its own, and is decomposed
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return " ".join(str(error).split())[:400]
    return ""


def _value(arg: Any) -> Any:
    return arg.meta.get("val", arg) if isinstance(arg, torch.fx.Node) else arg


def _real(arg: Any) -> Any:
    """A tensor of the same form: numbers from 0 to 1, whole ones 0, which is an index if any is."""
    if not isinstance(arg, torch.Tensor):
        return arg
    sizes = [(int(size), int(step)) for size, step in zip(arg.shape, arg.stride(), strict=True)]
    stored = tuple(size if step else min(size, 1) for size, step in sizes)
    if arg.dtype.is_floating_point or arg.dtype.is_complex:
        data = torch.rand(stored, dtype=torch.float64).to(arg.dtype)
    else:
        data = torch.zeros(stored, dtype=arg.dtype)
    if all(size == kept for (size, _), kept in zip(sizes, stored, strict=True)):
        made = torch.empty_strided(stored, [step for _, step in sizes], dtype=arg.dtype)
        return made.copy_(data)
    return data.expand(arg.shape)
