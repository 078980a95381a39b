"""Checks that branches of ``forward`` go the way in which they were traced.

A graph holds one side of a branch. What it branches on is looked at on the device in every run
(``samba.checked_branch``), and what is found stays in a region of one bool until the host reads it:
later runs keep it. So no run waits, and none is missed. While it says that a branch went the
other way, runs change neither weights nor buffers nor optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.errors import BranchLine, OtherBranch
from emulator.op_facts.names import CHECKED_BRANCH, is_held
from pef_schema.program import Graph, Node, Program


def checked_parts(
    graph: Graph, indices: Sequence[int], outputs: Set[int]
) -> dict[int, tuple[int, ...]]:
    """The nodes whose results lead to a check of a branch and nowhere else.

    Compiled with what surrounds them they would make again what they look at: ``isfinite(h)``
    would compute ``h``, and all that leads to it, a second time.

    Args:
        graph: The graph.
        indices: The nodes that run, in order.
        outputs: Values that are needed besides those that nodes read.

    Returns:
        Those nodes in order, the check last, by the check.
    """
    checks = [i for i in indices if graph.nodes[i].op == CHECKED_BRANCH]
    if not checks:
        return {}
    readers: dict[int, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in node.refs():
            readers.setdefault(value, set()).add(i)
    parts: dict[int, tuple[int, ...]] = {}
    for check in checks:
        members = {check}
        values = set(graph.nodes[check].refs())
        for i in reversed([i for i in indices if i < check]):
            results = [v for v in graph.nodes[i].outputs if v >= 0]
            if (
                not values.isdisjoint(results)
                and outputs.isdisjoint(results)
                and not any(graph.values[v].needs_grad for v in results)
                and all(readers.get(v, set()) <= members for v in results)
            ):
                members.add(i)
                values.update(graph.nodes[i].refs())
        parts[check] = tuple(sorted(members))
    return parts


def any_failed(checks: Set[int], state: Mapping[int, Any]) -> jax.Array | None:
    """Whether a branch went the other way, in this run or in one before.

    Args:
        checks: The regions of a program's checks.
        state: Device memory; of those regions it may hold some.

    Returns:
        One bool; None where memory holds no check.
    """
    flags = [state[region] for region in sorted(checks & state.keys())]
    return jnp.stack(flags).any() if flags else None


def held(failed: jax.Array | None, before: Any, after: Any) -> Any:
    """What a run leaves of an array that it changes.

    Args:
        failed: Whether a branch went the other way; None where none is checked.
        before: The array before the run.
        after: The array after it.
    """
    return after if failed is None else jnp.where(failed, before, after)


def held_back(
    program: Program, checks: Set[int], before: Mapping[int, Any], after: Mapping[int, Any]
) -> dict[int, Any]:
    """Regions that a run writes, with the contents that they keep if a branch went the other way.

    Args:
        program: The program.
        checks: The regions of its checks.
        before: Device memory before the run.
        after: Device memory after it: regions that were not held back when they were written.

    Returns:
        Those regions that keep their contents; nothing for a program without checks.
    """
    failed = any_failed(checks, after)
    return {
        region: held(failed, before[region], array)
        for region, array in after.items()
        if region in before and array is not before[region] and is_held(program, region, checks)
    }


def failed_branches(
    checks: Mapping[int, Node], buffers: Any, known: dict[int, Any], *, wait: bool
) -> OtherBranch | None:
    """Read what the checks have found.

    Args:
        checks: The checks by region.
        buffers: Device memory.
        known: What was read already and was as traced, by region; what is read now is added.
        wait: Whether to wait for runs under way; else those are left for later.

    Returns:
        The error that names the branches that went the other way; None if all went as traced.
    """
    failed: list[int] = []
    for region in checks:
        buffer: Any = buffers[region]
        # One of numpy is what the host wrote; a test for jax.Array would be most of the time.
        if buffer is known.get(region) or buffer is None or type(buffer) is np.ndarray:
            continue
        if buffer.is_deleted() or not (wait or buffer.is_ready()):
            continue
        if np.asarray(buffer):
            failed.append(region)
        else:
            known[region] = buffer
    if not failed:
        return None
    nodes = [checks[region] for region in failed]
    return OtherBranch(
        branches=[
            BranchLine(source=node.source, module=node.module, taken=bool(node.args[2]))
            for node in nodes
        ]
    )
