"""Errors of data parallel runs that need no device."""

from __future__ import annotations

from samba.errors import SambaError


class NotDataParallel(SambaError, ValueError):
    """A PEF without buckets was asked to run data parallel.

    Attributes:
        program: Name of its program.
    """

    def __init__(self, *, program: str) -> None:
        self.program = program
        super().__init__(
            f"session.run(data_parallel=True): the PEF of {program} was compiled without "
            "--data-parallel, so it has no REDUCE sections and the replicas' weights would "
            "diverge. Compile it with --data-parallel (or config_dict={'data_parallel': True})."
        )
