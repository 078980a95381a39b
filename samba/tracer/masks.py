"""Masks as indices whose sizes do not fit: eager torch refuses them when it runs.

The exporter knows no more of a mask than that it sets some entries, and passes such a graph on.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from samba.support.deviations import Deviations
from samba.tracer.errors import DtypeMismatch, ShapeMismatch
from samba.tracer.names import node_line
from samba.tracer.torch_internals import is_operation, packet_of

__all__ = ["refuse_masks"]

_READS = frozenset({"index", "_unsafe_index"})
_WRITES = frozenset({"index_put", "_unsafe_index_put", "_index_put_impl"})
_MASKS = frozenset({torch.bool, torch.uint8})


def refuse_masks(graph: torch.fx.Graph, deviations: Deviations) -> None:
    """Raise where torch would refuse a mask for its sizes, and tell where that depends on data.

    Args:
        graph: An exported functional graph, before it is decomposed.
        deviations: What has been said about the model.

    Raises:
        ShapeMismatch: With torch's words and the user's line.
        DtypeMismatch: Of bytes as a mask where torch takes bools alone.
    """
    for node in graph.nodes:
        if node.op != "call_function" or not is_operation(node.target):
            continue
        packet = packet_of(node.target)
        if packet == "masked_scatter":
            _tell_source(node, deviations)
        if packet not in _READS | _WRITES or getattr(node.target, "namespace", "") != "aten":
            continue
        base, indices = _value(node.args[0]), [_value(index) for index in node.args[1]]
        if not _known(base, *indices):
            continue  # selections of a mask have as many rows as it sets
        masks = [i for i in indices if isinstance(i, torch.Tensor) and i.dtype in _MASKS]
        if not masks:
            continue
        _refuse_sizes(node, base, indices)
        if packet in _WRITES:
            _refuse_values(node, base, indices, masks, deviations)


def _refuse_sizes(node: torch.fx.Node, base: torch.Tensor, indices: list[Any]) -> None:
    """Each mask has the sizes of the axes that it stands for."""
    axis = 0
    for place, index in enumerate(indices):
        if index is None or index.dtype not in _MASKS:
            axis += 1
            continue
        if axis + index.dim() > base.dim():
            raise _mismatch(node, f"too many indices for tensor of dimension {base.dim()}")
        for own, (have, want) in enumerate(zip(index.shape, base.shape[axis:], strict=False)):
            if have != want:
                raise _mismatch(
                    node,
                    f"The shape of the mask {list(index.shape)} at index {own} does not match the "
                    f"shape of the indexed tensor {list(base.shape)} at index {axis + own}"
                    + (f" (index {place})" if len(indices) > 1 else ""),
                )
        axis += index.dim()


def _refuse_values(
    node: torch.fx.Node,
    base: torch.Tensor,
    indices: list[Any],
    masks: list[torch.Tensor],
    deviations: Deviations,
) -> None:
    """Values fit the entries that a mask sets."""
    given = {
        **dict(zip(("values", "accumulate"), node.args[2:], strict=False)),
        **node.kwargs,
    }
    values = _value(given["values"])
    if (
        values is None
        or not _known(values)  # the rows of a selection by this very mask, as a rule
        or len(masks) > 1
        or any(i is not None and i is not masks[0] for i in indices)
    ):
        return  # it has no form on the device
    (mask,) = masks
    lead = next(place for place, index in enumerate(indices) if index is mask)
    if values.numel() == 1 and not given.get("accumulate", False) and mask.dtype is torch.uint8:
        raise DtypeMismatch(
            where=node_line(node) or "forward()",
            reason="masked_fill_ only supports boolean masks, but got mask with dtype "
            "unsigned char",
            hint="Torch raises that, too, when it runs: make the mask with .bool().",
        )
    rest = base.shape[lead + mask.dim() :]
    axis = values.dim() - len(rest) - 1  # of the values, one for each entry that is set
    count = values.shape[axis] if axis >= 0 else 1
    if count == 1:
        return
    if count > math.prod(mask.shape):
        raise _mismatch(
            node,
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result: the mask {list(mask.shape)} sets fewer than {count} entries",
        )
    deviations.tell(
        "unchecked-index",
        f"{node_line(node) or 'forward()'}: a mask takes {count} values. Where torch would raise "
        "because it sets another number of entries, results are wrong",
    )


def _tell_source(node: torch.fx.Node, deviations: Deviations) -> None:
    """Say that nobody counts whether ``masked_scatter`` has values for all entries of a mask."""
    source = _value(node.args[2]) if len(node.args) > 2 else None
    if (
        source is not None
        and _known(source, node.meta["val"])
        and source.numel() < node.meta["val"].numel()
    ):
        deviations.tell(
            "unchecked-index",
            f"{node_line(node) or 'forward()'}: a mask takes {source.numel()} values. Where torch "
            "would raise because it sets more entries, results are wrong",
        )


def _known(*values: torch.Tensor | None) -> bool:
    """Whether all sizes of tensors are numbers, and none hangs on data."""
    return all(type(n) is int for v in values if v is not None for n in v.shape)


def _value(arg: Any) -> Any:
    return arg.meta.get("val") if isinstance(arg, torch.fx.Node) else None


def _mismatch(node: torch.fx.Node, reason: str) -> ShapeMismatch:
    return ShapeMismatch(
        where=node_line(node) or "forward()",
        reason=reason,
        hint="Torch raises that, too, when it runs: give the mask the sizes of the axes that it "
        "stands for.",
    )
