"""How the processes of a script of Bagua meet, and groups of them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from samba.distributed import job
from samba.distributed.bagua.torch_api.env import launch
from samba.errors import ArgumentError


class ReduceOp(enum.IntEnum):
    """How the tensors of all ranks become one; the numbers are upstream's."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BOR = 7
    BAND = 8
    BXOR = 9
    AVG = 10


class Comm:
    """The ranks of a collective.

    Args:
        group: torch's group of them.
    """

    def __init__(self, group: Any) -> None:
        self.group = group

    def rank(self) -> int:
        """Number of this process in the group, -1 if it is not in it."""
        return dist.get_rank(self.group)

    def nranks(self) -> int:
        """How many ranks the group has."""
        return dist.get_world_size(self.group)


class BaguaProcessGroup:
    """Some of the ranks.

    Args:
        ranks: Their numbers among all.
        group: torch's group of them.
    """

    def __init__(self, ranks: Sequence[int], group: Any) -> None:
        self.ranks, self.group = tuple(ranks), group

    def is_whole(self) -> bool:
        """Whether it has all ranks."""
        return len(self.ranks) == dist.get_world_size()

    def get_global_communicator(self) -> Comm:
        """What collectives take as ``comm``."""
        return Comm(self.group)


def init_process_group(
    store: Any = None, rank: int = -1, world_size: int = -1, local_world_size: int = -1
) -> None:
    """Meet the other processes: afterwards torch's default process group is up.

    Args:
        store: torch's store in which they meet; None as the launcher tells. A process that none
            has started is alone.
        rank: Number of this process; with a store only.
        world_size: How many there are; with a store only.
        local_world_size: How many this host has; not needed here.

    Raises:
        ArgumentError: If a store is given without rank and world size, or the processes have met.
        DataParallelError: If the others do not come.
    """
    if is_initialized():
        raise ArgumentError(
            where="bagua.init_process_group",
            found="torch's default process group already initialised",
            wanted="one call, before the group exists",
        )
    if store is None:
        job.start(launch())
        return
    if not 0 <= rank < world_size:
        raise ArgumentError(
            where="bagua.init_process_group(store, rank=…, world_size=…)",
            found=f"rank {rank} of {world_size}",
            wanted="a rank from 0 to one less than the world size",
        )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def is_initialized() -> bool:
    """Whether the processes have met."""
    return dist.is_initialized()


def new_group(ranks: Sequence[int] | None = None, stream: Any = None) -> BaguaProcessGroup:
    """Make a group; all processes call this together.

    Args:
        ranks: Its ranks; all if None.
        stream: Must be None, as there are no CUDA streams.

    Raises:
        ArgumentError: If a rank does not exist, or a stream is given.
    """
    size = dist.get_world_size()
    chosen = list(range(size)) if ranks is None else sorted(ranks)
    if stream is not None or not all(0 <= r < size for r in chosen):
        raise ArgumentError(
            where="bagua new_group",
            found=f"ranks {chosen}, stream {stream!r}",
            wanted=f"ranks below {size} and no stream",
        )
    return BaguaProcessGroup(chosen, dist.new_group(chosen))


def from_torch_group(group: Any, stream: Any = None) -> BaguaProcessGroup:
    """The group of one of torch's.

    Args:
        group: torch's group.
        stream: Not needed here.
    """
    return BaguaProcessGroup(dist.get_process_group_ranks(group), group)


def _get_default_group() -> BaguaProcessGroup:
    """All ranks; upstream's example of the collectives asks for them by this name."""
    return from_torch_group(dist.group.WORLD)
