"""Ops that the tracer and the compiler insert by themselves, and the checks among them."""

from __future__ import annotations

from collections.abc import Mapping, Set

from pef_schema.program import Node, Program, Role

ALIAS = "aten.alias.default"
"""Gives a value that is one already a second time, as an output of its own."""

NEXT_SEED = "samba.next_seed"
"""Advances the state of the random stream by one forward pass."""

CAST_INPUT = "samba.cast_bf16.input"
"""Rounds the values that go into an operation."""

CAST_RESULT = "samba.cast_bf16.result"
"""Rounds a result for every operation that takes it."""

CHECKED_BRANCH = "samba.checked_branch"
"""Notes in state of a graph whether a branch that was traced one way would have gone the other."""

CASTS = frozenset({CAST_INPUT, CAST_RESULT})

_HELD = frozenset({Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE})
"""Roles of regions that keep their contents where a branch went the other way."""


def checked_branches(program: Program) -> Mapping[int, Node]:
    """The checks of a program, by the region that keeps what each finds.

    Args:
        program: The program.
    """
    checks: dict[int, Node] = {}
    for graph in program.graphs:
        region_of = {update.value: update.region for update in graph.updates}
        for node in graph.nodes:
            if node.op == CHECKED_BRANCH and node.outputs[0] in region_of:
                checks[region_of[node.outputs[0]]] = node
    return checks


def is_held(program: Program, region: int, checks: Set[int]) -> bool:
    """Whether a region keeps its contents in runs in which a branch went the other way.

    Args:
        program: The program.
        region: A region that a run writes.
        checks: The regions of its checks.
    """
    return region not in checks and program.regions[region].role in _HELD
