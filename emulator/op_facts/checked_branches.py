"""Which regions keep whether a branch of ``forward`` went the other way, and which depend on it."""

from __future__ import annotations

from collections.abc import Mapping, Set

from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema.program import Node, Program, Role

__all__ = ["checked_branches", "is_held"]

_HELD = frozenset({Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE})
"""Roles of regions that keep their contents where a branch went the other way."""


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


def is_held(program: Program, region: int, checks: Set[int]) -> bool:
    """Whether a region keeps its contents in runs in which a branch went the other way.

    Args:
        program: The program.
        region: A region that a run writes.
        checks: The regions of its checks.
    """
    return region not in checks and program.regions[region].role in _HELD
