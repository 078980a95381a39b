"""Indices looked at while a plan runs, so that one that is out of range is found afterwards.

Each watched index becomes a further result of the plan: whether one was out of range, which, and
where. Watching is for finding mistakes: such a plan keeps what it overwrites until its results are
known to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.errors import IndexOutOfRange
from emulator.op_facts.index_uses import IndexUse
from pef_schema.program import Graph, Program, SectionKind

Watched = Mapping[int, Sequence[IndexUse]]
"""Indices to look at, by graph."""

_SPAN = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedIndex:
    """An index that a plan looks at.

    Args:
        graph: Its graph.
        use: Where it is used, and what is allowed.
        key: Where its finding stands in the state of the plan; no region has this number.
    """

    graph: int
    use: IndexUse
    key: int


def watched_indices(
    program: Program, steps: Sequence[tuple[int, int]], watched: Watched
) -> tuple[WatchedIndex, ...]:
    """The indices that some steps look at.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs.
        watched: All indices to look at.
    """
    run: dict[int, set[int]] = {}
    for s, k in steps:
        step = program.sections[s].steps[k]
        if step.kind is SectionKind.FWD:
            run.setdefault(step.graph, set()).update(step.nodes)
    pairs = [(g, use) for g, uses in watched.items() for use in uses if use.node in run.get(g, ())]
    return tuple([WatchedIndex(graph=g, use=use, key=-1 - i) for i, (g, use) in enumerate(pairs)])


def look(index: jax.Array, use: IndexUse, before: jax.Array | None = None) -> jax.Array:
    """Look at an index.

    Args:
        index: Whole numbers of any shape.
        use: What is allowed.
        before: What was found where the same steps ran already.

    Returns:
        Int64 ``[1, index, place in the flattened tensor]`` of the first that is out of range;
        ``[0, 0, 0]`` if there is none.
    """
    if not index.size:
        return jnp.zeros(3, np.int64) if before is None else before  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
    flat = index.reshape(-1).astype(np.int64)
    good = flat != 0 if use.divisor else (flat >= use.low) & (flat <= use.high)
    if use.ignored is not None:
        good |= flat == use.ignored
    if use.wraps:
        above = jnp.where(flat < 0, flat + _SPAN, flat)
        good |= (
            above <= use.high
            if use.ignored is None
            else ((above <= use.high) & (above >= 0) | (above == use.ignored))
        )
    place = jnp.argmax(~good)
    bad = jnp.any(~good)
    report = jnp.where(bad, jnp.stack([bad.astype(np.int64), flat[place], place]), 0)
    return report if before is None else jnp.where(before[0] != 0, before, report)


def checked_call(
    call: Callable[..., Any], program: Program, watched: Sequence[WatchedIndex]
) -> Callable[..., Any]:
    """An executable that raises where an index was out of range.

    Args:
        call: The executable; findings are its last results.
        program: The program.
        watched: What the findings are of.

    Returns:
        A function that gives the other results.
    """

    def run(*arrays: jax.Array) -> Sequence[jax.Array]:
        results = call(*arrays)
        for finding, entry in zip(results[-len(watched) :], watched, strict=True):
            bad, index, place = np.asarray(finding).tolist()
            if bad:
                raise _error(program.graphs[entry.graph], entry.use, index, place)
        return results[: -len(watched)]

    return run


def _error(graph: Graph, use: IndexUse, index: int, place: int) -> IndexOutOfRange:
    node = graph.nodes[use.node]
    shape = graph.values[use.value].shape
    return IndexOutOfRange(
        tensor="",
        index=index,
        position=[int(i) for i in np.unravel_index(place, shape)],
        allowed=use.allowed,
        op=node.op,
        source=node.source,
        module=node.module,
    )
