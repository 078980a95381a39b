"""Nodes of whole numbers at which torch raises whatever the data is, a division by zero say.

The exporter computes shapes alone, and passes them on. What has no elements is asked for before,
in ``of_nothing.py``.
"""

from __future__ import annotations

import torch

from pef_schema.program import Node, Role
from samba.tracer.errors import TraceError
from samba.tracer.reference import run_node
from samba.tracer.traced import FROM_DTYPE, Traced

__all__ = ["refuse_raising"]

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
        if node.op in _COPIES and (held := whole.get(next(node.refs(), -1))) is not None:
            whole[node.outputs[0]] = held
        said = _said(traced, node, whole)
        if said:
            where = f"model {traced.name}"
            raise TraceError(
                where=f"{where}, {node.source}" if node.source else where,
                reason=f"torch raises here: {said}",
                hint="Leave this operation out where its result has no value.",
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
