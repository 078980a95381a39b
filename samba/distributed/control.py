"""The communicator for agreements: gloo's, beside torch's default process group or without it."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from emulator.replicas.comm.protocol import Communicator
from samba.distributed.environment import Launch
from samba.distributed.gloo import TorchGloo, listening_at, lone_group, new_group
from samba.distributed.stores import PrefixStore, Store

__all__ = ["control_beside_torch", "control_of_all", "lone_control"]


def control_beside_torch(
    store: Store, launch: Launch, hostname: str, deadline: float
) -> Communicator:
    """Set up torch's default process group, and a communicator of a group of its own.

    Args:
        store: Where the processes meet.
        launch: Which of them this is.
        hostname: Where it listens for the others, as ``listening_at`` takes it.
        deadline: Seconds that a collective may take.
    """
    with listening_at(hostname):
        dist.init_process_group(
            "gloo",
            store=PrefixStore("pg", store),
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=deadline),
        )
    return control_of_all(hostname, deadline)


def control_of_all(hostname: str, deadline: float) -> Communicator:
    """A communicator of all processes of torch's default group, which is up.

    Args:
        hostname, deadline: As for :func:`control_beside_torch`.
    """
    ranks = range(dist.get_world_size())
    group = new_group(ranks, deadline, hostname)
    return TorchGloo(group, ranks, deadline=deadline, address=hostname)


def lone_control(store: Store, launch: Launch, hostname: str, deadline: float) -> Communicator:
    """A communicator without torch's default group, which scripts take for one of replicas.

    Args:
        store, launch, hostname, deadline: As for :func:`control_beside_torch`.
    """
    group = lone_group(PrefixStore("pg", store), launch.rank, launch.size, deadline, hostname)
    return TorchGloo(group, range(launch.size), deadline=deadline, address=hostname)
