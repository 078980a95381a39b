"""The job of this process, for those who compare something with other replicas."""

from __future__ import annotations

from samba.distributed.present import PRESENT, Joined

__all__ = ["job_of_replicas"]


def job_of_replicas(what: str) -> Joined | None:
    """The replicas of this job.

    Args:
        what: What they are asked for.

    Returns:
        The job; None outside of one, and for one process.

    Raises:
        OneProgram: If its processes are no replicas, but have the chips of one program.
    """
    found = PRESENT.value
    if found is None or found.size == 1:
        return None
    found.refuse_one_program(what)
    return found
