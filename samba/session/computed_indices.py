"""The index checks of a loaded program: of its constants at once, of the rest by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from emulator.op_facts.index_uses import IndexUse
from pef_schema.program import DType, Program, Role
from samba.compiler.value_ranges import Range
from samba.session.index_checks import FedIndices, IndexChecks, find_index_checks
from samba.support.deviations import some_of, tell

__all__ = ["checks_by_region", "index_checks_of", "tell_computed"]

_TYPES = {
    DType.BOOL: np.bool_,
    DType.UINT8: np.uint8,
    DType.INT8: np.int8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.UINT32: np.uint32,
}
_SHOWN = 4


def index_checks_of(program: Program, number: int) -> IndexChecks:
    """Find the index checks of a graph, and make those of its constants.

    Args:
        program: A compiled program.
        number: Number of the graph.

    Returns:
        The checks of what the host writes, and what nobody checks.

    Raises:
        IndexOutOfRange: If a constant holds an index that is out of range.
    """
    graph = program.graphs[number]
    written = {region for s in program.sections for step in s.steps for region in step.writes}
    produced = {value for node in graph.nodes for value in node.outputs}
    constants: dict[int, np.ndarray] = {}
    sources: list[int] = []
    for index, value in enumerate(graph.values):
        if value.region < 0 or index in produced:
            continue
        region = program.regions[value.region]
        if region.role is Role.CONSTANT and region.dtype in _TYPES:
            data = np.frombuffer(program.segments[region.segment], _TYPES[region.dtype])
            constants[index] = data.reshape(region.shape)
        elif region.role in (Role.INPUT, Role.BUFFER) and value.region not in written:
            sources.append(index)
    known: dict[int, Range] = {
        index: (int(data.min()), int(data.max())) for index, data in constants.items() if data.size
    }
    found = find_index_checks(graph, [*sources, *constants], known)
    for index, data in constants.items():
        for check in found.fed.get(index, ()):
            check.check(data)
    return found


def checks_by_region(
    program: Program, checks: Sequence[IndexChecks]
) -> Mapping[int, tuple[FedIndices, ...]]:
    """Checks of all graphs by the region that they are of.

    Args:
        program: The program.
        checks: The checks of each of its graphs.
    """
    found: dict[int, tuple[FedIndices, ...]] = {}
    for graph, of_graph in zip(program.graphs, checks, strict=True):
        for value, entries in of_graph.fed.items():
            region = graph.values[value].region
            found[region] = (*found.get(region, ()), *entries)
    return found


def tell_computed(program: Program, computed: Mapping[int, Sequence[IndexUse]]) -> None:
    """Say once for a program which of its indices nobody checks.

    Args:
        program: The program.
        computed: Indices that a graph computes and that may be out of range, by graph.
    """
    for divisors in (False, True):
        places = dict.fromkeys(
            f"{node.op} at {node.source}" if node.source else f"{node.op} in {node.module}"
            for number, uses in computed.items()
            for use in uses
            if use.divisor is divisors
            for node in (program.graphs[number].nodes[use.node],)
        )
        if not places:
            continue
        what = "divisors of whole numbers" if divisors else "indices"
        why = "is zero" if divisors else "is out of range"
        tell(
            "unchecked-index",
            f"{what} that the model computes itself are not checked: "
            f"{some_of(list(places), _SHOWN)}. Where torch would raise because one {why}, results "
            "are wrong; --check-indices (or config_dict={'check_indices': True} for trace_graph) "
            "finds it, at the cost of speed",
        )
