"""A host's cores, divided among its replicas."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from samba.distributed.environment import Launch


def share_of_cores(
    cores: Sequence[int], local_rank: int, local_size: int, least: int = 1
) -> list[int]:
    """The cores of one replica.

    Args:
        cores: Cores that all replicas of the host may use.
        local_rank: Number of the replica on its host.
        local_size: How many replicas the host has.
        least: How many cores each of them needs.

    Returns:
        Its cores; all of them if there are fewer than they need.

    Example:
        >>> share_of_cores(range(8), 1, 3), share_of_cores([0, 1], 2, 4)
        ([3, 4, 5], [0, 1])
    """
    each = len(cores) // local_size
    if each < least:
        return list(cores)
    extra = len(cores) - each * local_size  # the first replicas get one more
    first = local_rank * each + min(local_rank, extra)
    return list(cores[first : first + each + (local_rank < extra)])


def divide_cores(launch: Launch, least: int = 1) -> None:
    """Keep this replica to its share of the host's cores and torch to as many threads.

    A launcher that has bound its processes already has done that; then only torch's threads are
    set. ``OMP_NUM_THREADS`` goes before.

    Args:
        launch: Which replica this is.
        least: How many cores each of them needs; where there are fewer, none is kept to a share.
    """
    local_size = launch.local_size or (launch.size if launch.address is None else 0)
    if local_size < 2 or not hasattr(os, "sched_getaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == os.cpu_count():
        allowed = share_of_cores(allowed, launch.local_rank % local_size, local_size, least)
        os.sched_setaffinity(0, allowed)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(allowed))
