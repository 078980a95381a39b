"""What the processes of one mesh do together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import numpy as np

__all__ = ["Processes"]

T = TypeVar("T")


class Processes(Protocol):
    """The processes that have the chips of one mesh, an equal number each.

    All of them run the same program on the same values. Each call here is made by all of them, at
    the same point of their programs; who is elsewhere is an error that every one of them raises.

    Attributes:
        rank: Number of this process.
        size: How many processes there are.
    """

    rank: int
    size: int

    def run(self, operation: str, do: Callable[[], T], given: Mapping[str, np.ndarray]) -> T:
        """Do something of which every process does a part.

        Args:
            operation: What it is, for errors; the same in all processes.
            do: This process's part; on return nothing of it is under way.
            given: Values that it takes from the host, by name. They must be the same everywhere.

        Returns:
            What ``do`` returns.
        """
        ...

    def same(self, operation: str, array: np.ndarray) -> np.ndarray:
        """The values that the first process has.

        Args:
            operation: What they are for.
            array: Those of this process, which may be overwritten; of one form everywhere.

        Returns:
            An array of the same shape and dtype.
        """
        ...

    def gather(self, operation: str, part: np.ndarray) -> np.ndarray:
        """The parts of all processes.

        Args:
            operation: What they are for.
            part: That of this process; of one form everywhere.

        Returns:
            An array with one more axis in front, of the processes in the order of their ranks.
        """
        ...
