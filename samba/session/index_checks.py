"""Indices of a loaded program: which are checked where, at load, when they are fed, or nowhere.

torch raises where an index is out of range; a device cannot. What reaches an index unchanged from
an input is checked when it is fed: :class:`FedIndices` says which part of the array has which
bounds, so that a run only looks for the least and the largest number. Constants are checked at
load. What the graph computes itself is checked on the device, if the script asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from emulator.dtypes import TO_NUMPY
from emulator.errors import IndexOutOfRange
from emulator.op_facts.index_uses import IndexUse, index_uses, is_label
from pef_schema.module_paths import plain_path
from pef_schema.printable import some_of
from pef_schema.program import DType, Graph, Node, Program, Role
from samba.compiler.moved_elements import moved_elements
from samba.compiler.value_ranges import Range, value_ranges
from samba.support.deviations import tell


@dataclass(frozen=True, slots=True, kw_only=True)
class FedIndices:
    """Elements of a fed tensor that a node takes as indices.

    Args:
        tensor: Name of the tensor.
        part: Those elements as a key of the array: slices, or places in the flattened array; None
            for all of them.
        use: What the node allows.
        node: The node.
        below: Elements whose bits, read as an unsigned number, are less than this are allowed.
        unsigned: The type to read them as; None where every element has to be looked at.
        ignored: Bits of the ignored index as such a number; -1 if there is none.
    """

    tensor: str
    part: tuple[slice, ...] | np.ndarray | None
    use: IndexUse
    node: Node
    below: int
    unsigned: np.dtype | None
    ignored: int

    def check(self, array: np.ndarray) -> None:
        """Raise if torch would.

        Args:
            array: What is fed, row-major, of the input's shape and type.

        Raises:
            IndexOutOfRange: If an element is not an allowed index.
        """
        if self.unsigned is not None:
            # A negative number has the highest bit set: one look finds both ends.
            if array.size == 1 and 0 <= array.item() < self.below:
                return
            bits = array.view(self.unsigned)
            if self.part is not None:
                bits = self._chosen(bits)
            # Of a few numbers argmax finds the largest in a fifth of the time of numpy's max.
            if bits.item(bits.argmax()) < self.below:
                return
            if self.ignored >= 0 and (
                np.count_nonzero(bits >= self.below) == np.count_nonzero(bits == self.ignored)
            ):
                return
        self._check_each(array)

    def _chosen(self, array: np.ndarray) -> np.ndarray:
        if self.part is None:
            return array
        if isinstance(self.part, tuple):
            return array[self.part]
        return array.reshape(-1)[self.part]

    def _check_each(self, array: np.ndarray) -> None:
        """Look at every element, with all that is allowed."""
        use, chosen = self.use, self._chosen(array)
        low, high = use.low - 1, use.high + 1
        bad = chosen == 0 if use.divisor else ~((chosen > low) & (chosen < high))
        if use.ignored is not None:
            bad &= chosen != use.ignored
        for place in np.argwhere(bad):
            index = chosen[tuple(place)].item()
            if not use.allows(index):
                places = self._chosen(np.arange(array.size).reshape(array.shape))
                position = np.unravel_index(places[tuple(place)], array.shape)
                raise IndexOutOfRange(
                    tensor=self.tensor,
                    index=index,
                    position=tuple(int(i) for i in position),
                    allowed=use.allowed,
                    op=self.node.op,
                    source=self.node.source,
                    module=self.node.module,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChecks:
    """The indices of a graph.

    Args:
        fed: Checks by value, for the values whose elements reach an index unchanged.
        computed: What the graph computes itself and may be out of range.
    """

    fed: Mapping[int, tuple[FedIndices, ...]]
    computed: tuple[IndexUse, ...]


def find_index_checks(program: Program, number: int) -> IndexChecks:
    """Find the index checks of a graph, and make those of its constants.

    Args:
        program: A compiled program.
        number: Number of the graph.

    Returns:
        The checks of what the host writes, and what nobody checks; nothing for an index that
        cannot be out of range.

    Raises:
        IndexOutOfRange: If a constant holds an index that is out of range.
    """
    graph = program.graphs[number]
    uses = index_uses(graph)
    if not uses:
        return IndexChecks(fed={}, computed=())
    constants, written_by_host = _outer_values(program, graph)
    known: dict[int, Range] = {
        index: (int(data.min()), int(data.max())) for index, data in constants.items() if data.size
    }
    ranges = value_ranges(graph, known)
    uses = tuple([use for use in uses if not _is_within(use, ranges.get(use.value))])
    sources = frozenset([*written_by_host, *constants])
    moved = moved_elements(graph, [use.value for use in uses], sources)
    fed: dict[int, list[FedIndices]] = {}
    computed: list[IndexUse] = []
    for use in uses:
        elements = moved[use.value]
        if not all(_is_within(use, ranges.get(value)) for value in elements.computed) or not all(
            use.allows(fill) for fill in elements.fills
        ):
            computed.append(use)
        for source, places in elements.sources.items():
            if not _is_within(use, ranges.get(source)):
                fed.setdefault(source, []).append(_fed(graph, use, source, places))
    strictest = {value: _strictest(checks) for value, checks in fed.items()}
    for index, data in constants.items():
        for check in strictest.get(index, ()):
            check.check(data)
    return IndexChecks(fed=strictest, computed=tuple(computed))


def written_regions(program: Program) -> frozenset[int]:
    """Regions that a step of a program writes.

    Args:
        program: The program.
    """
    return frozenset(r for s in program.sections for step in s.steps for r in step.writes)


def _outer_values(program: Program, graph: Graph) -> tuple[dict[int, np.ndarray], list[int]]:
    """Whole numbers among the constants of a graph, and the values that only the host writes."""
    written = written_regions(program)
    produced = {value for node in graph.nodes for value in node.outputs}
    constants: dict[int, np.ndarray] = {}
    written_by_host: list[int] = []
    for index, value in enumerate(graph.values):
        if value.region < 0 or index in produced:
            continue
        region = program.regions[value.region]
        if region.role is Role.CONSTANT and not region.dtype.has_gradient:
            data = np.frombuffer(program.segments[region.segment], TO_NUMPY[region.dtype])
            constants[index] = data.reshape(region.shape)
        elif region.role in (Role.INPUT, Role.BUFFER) and value.region not in written:
            written_by_host.append(index)
    return constants, written_by_host


def _is_within(use: IndexUse, span: Range | None) -> bool:
    if span is None:
        return False
    if use.divisor:
        return span[0] > 0 or span[1] < 0
    return (use.low <= span[0] and span[1] <= use.high) or span == (use.ignored, use.ignored)


def _strictest(checks: Sequence[FedIndices]) -> tuple[FedIndices, ...]:
    """Checks without those that another one of the same elements makes needless."""
    strictest: dict[object, FedIndices] = {}
    for check in checks:
        use = check.use
        part = check.part.tobytes() if isinstance(check.part, np.ndarray) else str(check.part)
        key = part, use.low, use.ignored, use.wraps, use.divisor
        if key not in strictest or use.high < strictest[key].use.high:
            strictest[key] = check
    return tuple(strictest.values())


def _fed(graph: Graph, use: IndexUse, source: int, places: torch.Tensor) -> FedIndices:
    value, node = graph.values[source], graph.nodes[use.node]
    if value.dtype is DType.INT16 and is_label(node):
        use = replace(use, wraps=True)
    whole = not value.dtype.has_gradient and value.dtype is not DType.BOOL
    plain = whole and use.high >= 0 and not use.divisor
    bits = 8 * value.dtype.itemsize
    ignored = -1
    if plain and use.ignored is not None and -(1 << bits - 1) <= use.ignored < 1 << bits - 1:
        ignored = use.ignored % (1 << bits)
    return FedIndices(
        tensor=value.name,
        part=_part(places.numpy(), value.shape),
        use=use,
        node=node,
        below=use.high + 1,
        unsigned=np.dtype(f"u{value.dtype.itemsize}") if plain else None,
        ignored=ignored if ignored > use.high else -1,
    )


def _part(places: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...] | np.ndarray | None:
    """Elements of an array as slices where they are such, else as places in it flattened."""
    if len(places) == math.prod(shape):
        return None
    slices: list[slice] = []
    count = 1
    for along in np.unravel_index(places, shape):
        indices = np.unique(along)
        steps = np.unique(np.diff(indices))
        if len(steps) > 1:
            return places
        step = int(steps[0]) if len(steps) else 1
        slices.append(slice(int(indices[0]), int(indices[-1]) + 1, step))
        count *= len(indices)
    return tuple(slices) if count == len(places) else places


def checks_by_region(
    program: Program, checks: Sequence[IndexChecks]
) -> Mapping[int, tuple[FedIndices, ...]]:
    """Checks of all graphs by the region that they are of.

    Args:
        program: The program.
        checks: The checks of each of its graphs.
    """
    by_region: dict[int, tuple[FedIndices, ...]] = {}
    for graph, of_graph in zip(program.graphs, checks, strict=True):
        for value, entries in of_graph.fed.items():
            region = graph.values[value].region
            by_region[region] = (*by_region.get(region, ()), *entries)
    return by_region


def warn_of_computed(program: Program, computed: Mapping[int, Sequence[IndexUse]]) -> None:
    """Warn once for a program of the indices that nobody checks.

    Args:
        program: The program.
        computed: Indices that a graph computes and that may be out of range, by graph.
    """
    for divisors in (False, True):
        places = dict.fromkeys(
            f"{node.op} "
            + (f"at {node.source}" if node.source else f"in {plain_path(node.module)}")
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
            f"{some_of(list(places))}. Where torch would raise because one {why}, results "
            "are wrong; --check-indices (or config_dict={'check_indices': True} for trace_graph) "
            "finds it, at the cost of speed",
        )
