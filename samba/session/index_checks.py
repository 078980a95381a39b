"""Which of a program's indices are checked where: when they are fed, at load, or on the device.

torch raises where an index is out of range; a device cannot. What reaches an index unchanged from
an input is checked when it is fed: :class:`FedIndices` says which part of the array has which
bounds, so that a run only looks for the least and the largest number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from emulator.errors import IndexOutOfRange
from emulator.op_facts.index_uses import IndexUse, index_uses, is_label
from pef_schema.program import DType, Graph
from samba.compiler.moved_elements import moved_elements
from samba.compiler.value_ranges import Range, value_ranges

__all__ = ["FedIndices", "IndexChecks", "find_index_checks"]

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FedIndices:
    """Elements of a fed tensor that a node takes as indices.

    Args:
        tensor: Name of the tensor.
        part: Those elements as a key of the array: slices, or places in the flattened array; None
            for all of them.
        use: What the node allows.
        op, source, module: The node.
        below: Elements whose bits, read as an unsigned number, are less than this are allowed.
        unsigned: The type to read them as; None where every element has to be looked at.
        ignored: Bits of the ignored index as such a number; -1 if there is none.
    """

    tensor: str
    part: tuple[slice, ...] | np.ndarray | None
    use: IndexUse
    op: str
    source: str
    module: str
    below: int
    unsigned: np.dtype | None
    ignored: int

    def check(self, array: np.ndarray) -> None:
        """Raise if torch would.

        Args:
            array: What is fed, row-major, of the input's shape and type.

        Raises:
            IndexOutOfRange: If an element is no allowed index.
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
        self._look(self._chosen(array), array.shape)

    def _chosen(self, array: np.ndarray) -> np.ndarray:
        if self.part is None:
            return array
        if isinstance(self.part, tuple):
            return array[self.part]
        return array.reshape(-1)[self.part]

    def _look(self, chosen: np.ndarray, shape: tuple[int, ...]) -> None:
        """Look at every element, with all that is allowed."""
        use = self.use
        low, high = use.low - 1, use.high + 1
        bad = chosen == 0 if use.divisor else ~((chosen > low) & (chosen < high))
        if use.ignored is not None:
            bad &= chosen != use.ignored
        if not bad.any():
            return
        for place in np.argwhere(bad):
            index = chosen[tuple(place)].item()
            if not use.allows(index):
                raise IndexOutOfRange(
                    tensor=self.tensor,
                    index=index,
                    position=self._position(place, shape),
                    allowed=use.allowed,
                    op=self.op,
                    source=self.source,
                    module=self.module,
                )

    def _position(self, place: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Where an element of the part stands in the whole."""
        if self.part is None:
            return tuple(place.tolist())
        if isinstance(self.part, tuple):
            starts = zip(place.tolist(), self.part, strict=True)
            return tuple(s.start + i * s.step for i, s in starts)
        return tuple(int(i) for i in np.unravel_index(int(self.part[place[0]]), shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChecks:
    """The indices of a graph.

    Args:
        fed: Checks by value, for the values whose elements reach an index unchanged.
        computed: What the graph computes itself and may be out of range.
    """

    fed: Mapping[int, tuple[FedIndices, ...]]
    computed: tuple[IndexUse, ...]


def find_index_checks(
    graph: Graph, sources: Sequence[int], known: Mapping[int, Range] | None = None
) -> IndexChecks:
    """Find what there is to check in a graph.

    Args:
        graph: A compiled graph.
        sources: Values that are checked when the host writes them: inputs.
        known: Ranges of other values that no node produces.

    Returns:
        Nothing for an index that cannot be out of range.
    """
    uses = index_uses(graph)
    if not uses:
        return IndexChecks(fed={}, computed=())
    ranges = value_ranges(graph, known or {})
    uses = tuple([use for use in uses if not _within(use, ranges.get(use.value))])
    moved = moved_elements(graph, [use.value for use in uses], frozenset(sources))
    fed: dict[int, list[FedIndices]] = {}
    computed: list[IndexUse] = []
    for use in uses:
        found = moved[use.value]
        if not all(_within(use, ranges.get(value)) for value in found.computed) or not all(
            use.allows(fill) for fill in found.fills
        ):
            computed.append(use)
        for source, places in found.sources.items():
            if not _within(use, ranges.get(source)):
                fed.setdefault(source, []).append(_fed(graph, use, source, places))
    return IndexChecks(
        fed={value: _strictest(checks) for value, checks in fed.items()}, computed=tuple(computed)
    )


def _within(use: IndexUse, span: Range | None) -> bool:
    if span is None:
        return False
    if use.divisor:
        return span[0] > 0 or span[1] < 0
    return (use.low <= span[0] and span[1] <= use.high) or span == (use.ignored, use.ignored)


def _strictest(checks: Sequence[FedIndices]) -> tuple[FedIndices, ...]:
    """Checks without those that another one of the same elements makes needless."""
    kept: dict[object, FedIndices] = {}
    for check in checks:
        use = check.use
        part = check.part.tobytes() if isinstance(check.part, np.ndarray) else str(check.part)
        key = part, use.low, use.ignored, use.wraps, use.divisor
        if key not in kept or use.high < kept[key].use.high:
            kept[key] = check
    return tuple(kept.values())


def _fed(graph: Graph, use: IndexUse, source: int, places: torch.Tensor) -> FedIndices:
    value, node = graph.values[source], graph.nodes[use.node]
    if value.dtype is DType.INT16 and is_label(node):
        use = replace(use, wraps=True)
    part = _part(places.numpy(), value.shape)
    whole = not value.dtype.has_gradient and value.dtype is not DType.BOOL
    plain = whole and use.high >= 0 and not use.divisor
    bits = 8 * value.dtype.itemsize
    ignored = -1
    if plain and use.ignored is not None and -(1 << bits - 1) <= use.ignored < 1 << bits - 1:
        ignored = use.ignored % (1 << bits)
    return FedIndices(
        tensor=value.name,
        part=part,
        use=use,
        op=node.op,
        source=node.source,
        module=node.module,
        below=use.high + 1,
        unsigned=_UNSIGNED[value.dtype.itemsize] if plain else None,
        ignored=ignored if ignored > use.high else -1,
    )


def _part(places: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...] | np.ndarray | None:
    """Elements of an array as slices where they are such, else as places in it flattened."""
    if len(places) == int(np.prod(shape)):
        return None
    slices: list[slice] = []
    count = 1
    for along in np.unravel_index(places, shape):
        found = np.unique(along)
        steps = np.unique(np.diff(found))
        if len(steps) > 1:
            return places
        step = int(steps[0]) if len(steps) else 1
        slices.append(slice(int(found[0]), int(found[-1]) + 1, step))
        count *= len(found)
    return tuple(slices) if count == len(places) else places
