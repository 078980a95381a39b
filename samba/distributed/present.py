"""Whether this process has joined others, for modules that do not load what joins them."""

from __future__ import annotations

from typing import Protocol

from samba.support.slot import Slot

__all__ = ["PRESENT", "Joined"]


class Joined(Protocol):
    """A job, and the place of this process in it.

    Attributes:
        rank: Number of this process.
        size: How many there are.
    """

    rank: int
    size: int

    def refuse_one_program(self, what: str) -> None:
        """Refuse what is for replicas where processes have the chips of one program.

        Args:
            what: What is refused.
        """
        ...

    def agree(self, when: str, facts: dict[str, str], *, advice: str = ...) -> None:
        """Make sure that all ranks are about to do the same.

        Args:
            when: Where in the program this is, for the error.
            facts: What must be the same, by name.
            advice: What to do if it is not.
        """
        ...

    def gather(self, operation: str, data: bytes) -> list[bytes]:
        """What all ranks give at the same point of their programs.

        Args:
            operation: What it is for.
            data: What this rank gives.
        """
        ...


PRESENT: Slot[Joined] = Slot()
"""The job of this process, none outside of one."""
