"""Errors of data parallel runs that need no device."""

from __future__ import annotations

from emulator.replicas.comm.errors import DataParallelError
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


class OneProgram(SambaError, ValueError):
    """What is for replicas was asked of processes that have the chips of one program.

    Attributes:
        what: What was asked for.
        size: How many processes there are.
    """

    def __init__(self, *, what: str, size: int) -> None:
        self.what, self.size = what, size
        super().__init__(
            f"{what}: found {size} processes that are chips of one program (--n-chips with "
            "--tensor-parallel), expected replicas. Give the script --data-parallel: each process "
            "is then a replica with its own chips."
        )


class NotJoinable(SambaError, ValueError):
    """Uneven data was announced where an algorithm takes the place of averaged gradients.

    Attributes:
        algorithm: Its name.
    """

    def __init__(self, *, algorithm: str) -> None:
        self.algorithm = algorithm
        super().__init__(
            f"samba.session.join(): Bagua's algorithm {algorithm} replaces the REDUCE sections and "
            "needs data on every rank. Give every rank the same number of batches, or train "
            "without the algorithm."
        )


class CannotListen(DataParallelError):
    """The address, port or interface that a job asks for is not available on this host.

    Attributes:
        what: What asks for it, such as an environment variable with its value.
        address: The address with its port, or the interfaces.
        reason: Why not.
    """

    def __init__(self, *, what: str, address: str, reason: str, hint: str) -> None:
        self.what, self.address, self.reason = what, address, reason
        super().__init__(f"{what}: cannot listen at {address}: {reason}. {hint}")


def is_of_collective(error: BaseException) -> bool:
    """Whether an error looks as if a collective of the script's own had raised it."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        word in text for word in ("gloo", "Connection", "Timed out", "Timeout", "store", "Socket")
    )
