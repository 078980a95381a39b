"""Memory that an op takes beside what it reads and makes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulator.op_facts.node_arguments import NamedArgs
from pef_schema.program import Gradient, Graph, Node

__all__ = ["Scratch", "scratch_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Bytes beside those of arguments and results.

    Args:
        kept: Of what the op keeps for its gradient.
        forward: Of what it needs while it runs.
        backward: Of what its gradient needs while it runs.
    """

    kept: int = 0
    forward: int = 0
    backward: int = 0


_NONE = Scratch()


def scratch_of(graph: Graph | Gradient, node: Node) -> Scratch:
    """The memory that a node takes beside what it reads and makes.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node.

    Returns:
        The bytes; none for an op of which nobody has said anything.
    """
    if node.op == "aten.scaled_dot_product_attention.default":
        at = NamedArgs(graph, node)
        q, k = at.shape(0), at.shape(1)
        scores = math.prod(q[:-1]) * k[-2] * max(at.dtype(0).itemsize, 4)
        return Scratch(kept=scores, backward=scores)
    return _NONE
