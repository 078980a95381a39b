"""Bags whose gradients are divided by frequencies: torch's kernel takes those of other rows."""

from __future__ import annotations

import torch

from samba.support.deviations import Deviations
from samba.tracer.names import node_line
from samba.tracer.torch_internals import is_operation, packet_of

__all__ = ["tell_bag_frequencies"]

_BAGS = frozenset({"embedding_bag", "_embedding_bag"})
_PLACE = 3
"""Of ``scale_grad_by_freq`` among the arguments."""


def tell_bag_frequencies(graph: torch.fx.Graph, deviations: Deviations) -> None:
    """Say once that gradients of a bag's rows are divided by other counts than torch's.

    Args:
        graph: An exported functional graph, with gradients.
        deviations: What has been said about the model.
    """
    for node in graph.nodes:
        if not is_operation(node.target) or packet_of(node.target) not in _BAGS:
            continue
        given = node.args[_PLACE] if len(node.args) > _PLACE else False
        if node.kwargs.get("scale_grad_by_freq", given):
            deviations.tell(
                "bag-frequencies",
                f"{node_line(node) or 'forward()'}: embedding_bag(scale_grad_by_freq=True) divides "
                "each row's gradient by how often that row is read. Torch divides it by how often "
                "another one is: its kernel looks up the count of the k-th index for the k-th row "
                "that occurs",
            )
