"""What torch's own kernels refuse and its exporter does not, which computes shapes alone.

The kernels themselves are asked where that costs nothing: of tensors that have no elements (the
largest of no elements, an index into no rows), and of whole numbers whatever the data is (a
division by zero, say).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from pef_schema.program import Node, Role
from samba.tracer.errors import ShapeMismatch, TraceError
from samba.tracer.nodes import value_of
from samba.tracer.reference import run_node
from samba.tracer.torch_internals import is_operation, tree_leaves, tree_map
from samba.tracer.traced import FROM_DTYPE, Traced
from samba.tracer.user_code import node_line

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
                    where=node_line(node, f"model {model}"),
                    reason=f"{node.target}: {reason}",
                    hint="Torch refuses it for tensors without elements. Check the shapes of the "
                    "inputs given for tracing: they are the shapes that the program is compiled "
                    "for.",
                )


def _takes_nothing(node: torch.fx.Node) -> bool:
    return any(
        isinstance(value, torch.Tensor) and any(type(n) is int and not n for n in value.shape)
        for value in map(value_of, node.all_input_nodes)
    )


def _refusal(node: torch.fx.Node) -> str:
    """What torch's kernels say to arguments of these sizes; empty if they take them."""
    target = node.target
    if not is_operation(target) or str(target).startswith(_UNASKED):
        return ""
    arguments: Any = tree_map(_value, (node.args, dict(node.kwargs)))
    leaves = tree_leaves(arguments)
    if any(isinstance(x, (torch.fx.Node, torch.SymInt, torch.SymFloat)) for x in leaves):
        return ""
    fake = [x for x in leaves if isinstance(x, torch.Tensor)]
    if any(type(size) is not int for x in fake for size in x.shape):
        return ""  # what gives it such a size is refused
    if any(x.layout is not torch.strided for x in fake):
        return ""
    if sum(x.numel() * x.element_size() for x in fake) > _MOST_BYTES:
        return ""
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            args, kwargs = tree_map(real_like, arguments)
            target(*args, **kwargs)
    except NotImplementedError:
        return ""  # it has no kernel of its own, and is decomposed
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return " ".join(str(error).split())[:400]
    return ""


def _value(arg: Any) -> Any:
    return arg.meta.get("val", arg) if isinstance(arg, torch.fx.Node) else arg


def real_like(arg: Any) -> Any:
    """A tensor with values, of the form of one without.

    Args:
        arg: The tensor, or another argument, which is given back.

    Returns:
        Numbers from 0 to 1, whole ones 0, which is an index if any is.
    """
    if not isinstance(arg, torch.Tensor):
        return arg
    sizes = [(int(size), int(step)) for size, step in zip(arg.shape, arg.stride(), strict=True)]
    stored = tuple(size if step else min(size, 1) for size, step in sizes)
    if arg.dtype.is_floating_point or arg.dtype.is_complex:
        data = torch.rand(stored, dtype=torch.float64).to(arg.dtype)
    else:
        data = torch.zeros(stored, dtype=arg.dtype)
    if all(size == size_stored for (size, _), size_stored in zip(sizes, stored, strict=True)):
        result = torch.empty_strided(stored, [step for _, step in sizes], dtype=arg.dtype)
        return result.copy_(data)
    return data.expand(arg.shape)


# -- whole numbers ------------------------------------------------------------------

_COPIES = frozenset({"aten.lift_fresh_copy.default", "aten.clone.default", "aten.detach.default"})

_OF_WHOLE_NUMBERS = frozenset(
    f"aten.{name}"
    for name in (
        *("floor_divide.default", "floor_divide.Scalar", "pow.Tensor_Scalar", "pow.Scalar"),
        *("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"),
        *("fmod.Tensor", "fmod.Scalar", "div.Tensor_mode", "div.Scalar_mode"),
        *("divide.Tensor_mode", "divide.Scalar_mode"),
    )
)
"""Operations that raise for some whole numbers."""


def refuse_raising(traced: Traced) -> None:
    """Raise where torch would in every run.

    Args:
        traced: A traced graph.

    Raises:
        TraceError: With torch's words and the user's line.
    """
    whole = {
        source.value: source.tensor
        for source in traced.sources
        if source.role is Role.CONSTANT and source.tensor is not None
    }
    for node in traced.nodes:
        if node.op in _COPIES and (constant := whole.get(next(node.refs(), -1))) is not None:
            whole[node.outputs[0]] = constant
        said = _said(traced, node, whole)
        if said:
            where = f"model {traced.name}"
            raise TraceError(
                where=f"{where}, {node.source}" if node.source else where,
                reason=f"torch raises here: {said}",
                hint="Leave this operation out, or change its arguments so that torch runs it.",
            )


def _said(traced: Traced, node: Node, constants: dict[int, torch.Tensor]) -> str:
    """What torch says when it runs a node; empty where it need not be tried, or runs."""
    refs = dict.fromkeys(node.refs())
    floating = any(traced.values[v].dtype.is_floating for v in (*refs, *node.outputs))
    if node.op not in _OF_WHOLE_NUMBERS or floating:
        return ""
    env = {v: constants.get(v, torch.ones((), dtype=_dtype(traced, v))) for v in refs}
    try:
        with torch.no_grad():
            run_node(node, env)
    except (RuntimeError, IndexError, ValueError) as error:
        said = str(error).splitlines()[0]
        return "" if "not implemented for" in said else said  # of a type, which the device has
    return ""


def _dtype(traced: Traced, value: int) -> torch.dtype:
    return FROM_DTYPE[traced.values[value].dtype]
