"""The job of this process, for those who compare something with other replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samba.distributed.present import PRESENT

if TYPE_CHECKING:
    from samba.distributed.job import Job

__all__ = ["job_of_replicas"]


def job_of_replicas(what: str) -> Job | None:
    """The replicas of this job.

    Args:
        what: What they are asked for.

    Returns:
        The job; None outside of one, and for one process.

    Raises:
        OneProgram: If its processes are no replicas, but have the chips of one program.
    """
    if not PRESENT:
        return None
    from samba.distributed import job  # noqa: PLC0415  # loads jax, as whoever has joined did

    found = job.current()
    if found is None or found.size == 1:
        return None
    job.refuse_one_program(found, what)
    return found
