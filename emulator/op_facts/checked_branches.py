"""Which regions of a program keep whether a branch of ``forward`` went the other way."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema.program import Node, Program

__all__ = ["checked_branches"]


def checked_branches(program: Program) -> Mapping[int, Node]:
    """The checks of a program, by the region that keeps what each finds.

    Args:
        program: The program.
    """
    found: dict[int, Node] = {}
    for graph in program.graphs:
        region_of = {update.value: update.region for update in graph.updates}
        for node in graph.nodes:
            if node.op == CHECKED_BRANCH and node.outputs[0] in region_of:
                found[region_of[node.outputs[0]]] = node
    return found
