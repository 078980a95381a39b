"""Communicators of a job on several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.replicas.comm.protocol import Communicator


class Hierarchy:
    """Communicators of a job on several hosts.

    Attributes:
        whole: Of all ranks.
        local: Of the ranks of this host; None if hosts make no difference.
        leaders: Of the first rank of each host; None on the others.
    """

    def __init__(self, whole: Communicator, nodes: Sequence[Sequence[int]]) -> None:
        self.whole = whole
        self.local: Communicator | None = None
        self.leaders: Communicator | None = None
        if 1 < len(nodes) < whole.size:
            self.local = whole.split(nodes, "nodes")
            self.leaders = whole.split([[ranks[0] for ranks in nodes]], "leaders")
