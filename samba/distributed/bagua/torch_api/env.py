"""The place of this process, also before the processes have met: what its launcher tells."""

from __future__ import annotations

import torch.distributed as dist

from samba.distributed.environment import Launch, detect
from samba.errors import ArgumentError


def launch() -> Launch:
    """What the launcher tells; a process that none has started is alone."""
    return detect() or Launch(launcher="torch", rank=0, size=1, local_rank=0, local_size=1)


def get_rank() -> int:
    """Number of this process."""
    return dist.get_rank() if dist.is_initialized() else launch().rank


def get_world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else launch().size


def get_local_rank() -> int:
    """Number of this process among those of its host."""
    return launch().local_rank


def get_local_size() -> int:
    """How many processes this host has.

    Raises:
        ArgumentError: If the launcher does not tell.
    """
    place = launch()
    if not place.local_size:
        raise ArgumentError(
            where="get_local_size",
            found=f"a launcher ({place.launcher}) that does not say how many processes a host has",
            wanted="a launcher that says it, or LOCAL_WORLD_SIZE set",
        )
    return place.local_size
