"""Checks that branches of ``forward`` go the way in which they were traced.

A graph holds one side of a branch. What it branches on is looked at on the device in every run
(``samba.checked_branch``), and what is found stays in a region of one bool until the host reads it:
later runs keep it. So no run waits, and none is missed. While it says that a branch went the
other way, runs change neither weights nor buffers nor optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.errors import BranchLine, OtherBranch
from emulator.op_facts.checked_branches import is_held
from pef_schema.program import Node, Program

__all__ = ["failed_branches", "held_back"]


def held_back(
    program: Program, checks: Set[int], before: Mapping[int, Any], after: Mapping[int, Any]
) -> dict[int, Any]:
    """Regions that a run writes, with the contents that they keep if a branch went the other way.

    Args:
        program: The program.
        checks: The regions of its checks; all of them are in ``after``.
        before: Device memory before the run.
        after: Device memory after it.

    Returns:
        Those regions that keep their contents; nothing for a program without checks.
    """
    written = [
        region
        for region, array in after.items()
        if region in before and array is not before[region] and is_held(program, region, checks)
    ]
    if not checks or not written:
        return {}
    failed = jnp.stack([after[region] for region in sorted(checks)]).any()
    return {region: jnp.where(failed, before[region], after[region]) for region in written}


def failed_branches(
    checks: Mapping[int, Node], buffers: Any, seen: dict[int, Any], *, wait: bool
) -> OtherBranch | None:
    """Read what the checks have found.

    Args:
        checks: The checks by region.
        buffers: Device memory.
        seen: What was read already and was as traced, by region; what is read now is added.
        wait: Whether to wait for runs under way; else those are left for later.

    Returns:
        The error that names the branches that went the other way; None if all went as traced.
    """
    failed: list[int] = []
    for region in checks:
        if buffers[region] is seen.get(region) or not isinstance(buffers[region], jax.Array):
            continue
        buffer: Any = buffers[region]
        if buffer.is_deleted() or not (wait or buffer.is_ready()):
            continue
        if np.asarray(buffer.addressable_data(0)).item():
            failed.append(region)
        else:
            seen[region] = buffer
    if not failed:
        return None
    nodes = [checks[region] for region in failed]
    return OtherBranch(
        branches=[
            BranchLine(source=node.source, module=node.module, taken=bool(node.args[2]))
            for node in nodes
        ]
    )
