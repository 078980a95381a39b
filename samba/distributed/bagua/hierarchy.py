"""Communicators of a job on several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.replicas.comm.inprocess import Hub, InProcess
from emulator.replicas.comm.protocol import Communicator


class Hierarchy:
    """Communicators of a job, by host.

    Args:
        whole: Of all ranks.
        nodes: Ranks by host.

    Attributes:
        whole: Of all ranks.
        local: Of the ranks of this host; None where each host has one rank.
        leaders: Of the first rank of each host; None on the others.
        hosts: How many hosts there are.
    """

    def __init__(self, whole: Communicator, nodes: Sequence[Sequence[int]]) -> None:
        self.whole, self.hosts = whole, len(nodes)
        self.local: Communicator | None = None
        self.leaders: Communicator | None = None
        if len(nodes) == whole.size:
            return
        if len(nodes) == 1:
            self.local = whole
            if whole.rank == 0:
                self.leaders = InProcess(Hub(1), 0, deadline=whole.deadline)
        else:
            self.local = whole.split(nodes, "nodes")
            self.leaders = whole.split([[ranks[0] for ranks in nodes]], "leaders")
