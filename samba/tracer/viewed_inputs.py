"""Inputs of which ``forward`` takes views: torch refuses some of tensors that do not lie row-major.

A model is traced with inputs that lie row-major, where ``x.view(...)`` is always possible. Of a
transposed or a channels-last tensor it may not be, and torch raises. So where a view may be of an
input's own memory, and that one lies otherwise, the model is traced once more with inputs that lie
so: if torch refuses that, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from samba.tensor.views import host_of, strides_of
from samba.tracer.errors import ShapeMismatch, TraceError
from samba.tracer.inputs import TraceInputs
from samba.tracer.looks import row_major
from samba.tracer.torch_internals import is_operation

__all__ = ["lies_otherwise", "refuse_views", "viewed_inputs"]

_aten = torch.ops.aten

_NONE: frozenset[int] = frozenset()

_VIEWS = frozenset(
    {
        *(_aten.view.default, _aten.view.dtype, _aten.view_as.default, _aten._unsafe_view.default),
        *(_aten.view_as_complex.default, _aten.view_copy.default, _aten.view_copy.dtype),
    }
)
"""Operations that torch refuses of tensors that lie in a way that does not fit."""

_ROW_MAJOR = frozenset(
    {
        *(_aten.linear.default, _aten.mm.default, _aten.bmm.default, _aten.addmm.default),
        *(_aten.embedding.default, _aten.layer_norm.default),
    }
)
"""Operations whose results lie row-major, however their arguments lie."""


def viewed_inputs(program: ExportedProgram) -> frozenset[int]:
    """Which inputs may have a view whose form hangs on how they lie in memory.

    Args:
        program: As ``torch.export.export`` gives it, before it is functional.

    Returns:
        Their places among the tensors that the model is given.
    """
    graph = program.graph
    users = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    places = {name: place for place, name in enumerate(users)}
    reached: dict[torch.fx.Node, frozenset[int]] = {}
    found = _NONE
    for node in graph.nodes:
        if node.op == "placeholder":
            own = places.get(node.name)
            reached[node] = frozenset() if own is None else frozenset({own})
            continue
        sources = _NONE.union(*[reached[source] for source in node.all_input_nodes])
        reached[node] = _NONE if node.target in _ROW_MAJOR else sources
        if sources and _has_views(program, node):
            found |= sources
    return found


def _has_views(program: ExportedProgram, node: torch.fx.Node) -> bool:
    """Whether a node is a view, or a part of the graph with one in it."""
    if is_operation(node.target) or node.op == "output":
        return node.target in _VIEWS
    parts = [a for a in node.all_input_nodes if a.op == "get_attr"]
    modules = [getattr(program.graph_module, str(part.target), None) for part in parts]
    return any(
        inner.target in _VIEWS
        for module in modules
        if isinstance(module, torch.fx.GraphModule)
        for own in module.modules()
        if isinstance(own, torch.fx.GraphModule)
        for inner in own.graph.nodes
    )


def lies_otherwise(given: TraceInputs, viewed: frozenset[int]) -> bool:
    """Whether one of the inputs that have views does not lie row-major.

    Args:
        given: What the model is traced with.
        viewed: What :func:`viewed_inputs` gives.
    """
    return any(
        place in viewed and not _is_row_major(entry.tensor)
        for place, entry in enumerate(given.tensors)
    )


def _is_row_major(tensor: torch.Tensor) -> bool:
    if not getattr(tensor, "_has_data", True):
        return True
    shape, (strides, _) = tuple(tensor.shape), strides_of(host_of(tensor))
    pairs = zip(shape, strides, row_major(shape), strict=True)
    return 0 in shape or all(n <= 1 or own == usual for n, own, usual in pairs)


def refuse_views(trace: Callable[[], Any], given: TraceInputs) -> None:
    """Raise if torch refuses a view of inputs that lie as those given.

    Args:
        trace: Traces the model with inputs that lie so.
        given: The inputs.

    Raises:
        ShapeMismatch: With torch's words, and how the inputs lie.
    """
    try:
        trace()
    except TraceError as error:
        if not any(word in error.reason for word in _WORDS):
            return  # the model is traced with inputs that lie row-major
        how = [
            f"{entry.name} has strides {strides_of(host_of(entry.tensor))[0]}"
            for entry in given.tensors
            if not _is_row_major(entry.tensor)
        ]
        said = error.reason.splitlines()[0]
        if said.startswith(_OF_THE_EXPORTER):
            said = f"view size is not compatible with input tensor's size and stride: {said}"
        raise ShapeMismatch(
            where=error.where,
            reason=f"{said} ({', '.join(how)})",
            hint="Torch raises that, too, for inputs that lie so in memory: pass x.contiguous(), "
            "or call reshape() in forward().",
        ) from None


_OF_THE_EXPORTER = "Cannot view a tensor"
_WORDS = (_OF_THE_EXPORTER, "view size is not compatible", "to view", "stride", "storage_offset")
"""Some of these are in what torch says of a view that cannot be."""
