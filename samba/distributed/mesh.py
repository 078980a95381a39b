"""Processes whose devices are the chips of one program: what they do together."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from emulator.replicas.comm.agreement import differing, same_on_all_ranks
from emulator.replicas.comm.errors import Disagreement, PeerLost
from emulator.replicas.comm.protocol import Communicator
from emulator.start import make_host_devices
from samba.distributed import job as jobs
from samba.distributed.environment import detect
from samba.distributed.job import Job
from samba.distributed.settings import checks_every_run
from samba.errors import ArgumentError

T = TypeVar("T")

_CHECKED_RUNS = 2
"""Runs of each plan whose inputs are compared; what differs usually does from the start."""
_DIGEST = 16
_CHUNK = 64 << 20


class MeshProcesses:
    """The processes of a job as the emulator sees them, see ``emulator.mesh.chips``.

    Whatever they do begins with a comparison of what each is about to do: a program that one of
    them alone runs on would otherwise wait for the deadline, or mix up its sums.

    Args:
        job: The job, whose devices are the chips of one program.

    Attributes:
        rank: Number of this process.
        size: How many there are.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.rank, self.size = job.rank, job.size
        self._runs = Counter[str]()

    def agree_on(self, pef: str) -> None:
        """Make sure that all processes load the same.

        Args:
            pef: Path of the PEF.

        Raises:
            Disagreement: If they do not.
        """
        self._job.agree("utils.trace_graph", {"PEF": pef_key(pef)})

    def run(self, operation: str, do: Callable[[], T], values: Mapping[str, np.ndarray]) -> T:
        """As :class:`~emulator.mesh.chips.Processes` has it.

        Raises:
            Disagreement: If another process does something else, or gives other values.
            DataParallelError: If another process does not come, or is lost meanwhile.
        """
        self._runs[operation] += 1
        checked = checks_every_run() or self._runs[operation] <= _CHECKED_RUNS
        digests = {name: _digest(_bytes(a)) for name, a in values.items()} if checked else {}
        if self._job.watchdog is not None:
            self._job.watchdog.at(self._runs.total(), -1)

        def together(control: Communicator) -> T:
            if not _same_everywhere(control, operation, b"".join(digests.values())):
                raise _other_values(control, operation, digests)
            try:
                return do()
            except RuntimeError as error:
                if not _is_of_transport(error):
                    raise
                reason = str(error).strip().splitlines()[0]
                raise PeerLost(operation=operation, reason=reason) from error

        return self._job.together(operation, together)

    def same(self, operation: str, array: np.ndarray) -> np.ndarray:
        """As :class:`~emulator.mesh.chips.Processes` has it.

        Raises:
            Disagreement: If another process does something else.
            DataParallelError: If another process does not come.
        """
        flat = array.reshape(-1) if array.flags.writeable else array.reshape(-1).copy()

        def together(control: Communicator) -> None:
            if not _same_everywhere(control, operation, _bytes(flat)):
                step = max(1, _CHUNK // flat.itemsize)
                for start in range(0, flat.size, step):
                    control.broadcast(flat[start : start + step])

        self._job.together(operation, together)
        return flat.reshape(array.shape)

    def gather(self, operation: str, part: np.ndarray) -> np.ndarray:
        """As :class:`~emulator.mesh.chips.Processes` has it.

        Raises:
            Disagreement: If another process does something else.
            DataParallelError: If another process does not come.
        """
        own = np.ascontiguousarray(part).reshape(-1)
        whole = np.empty(self.size * own.size, own.dtype)

        def together(control: Communicator) -> None:
            _same_everywhere(control, operation, b"")
            control.all_gather(whole, own)

        self._job.together(operation, together)
        return whole.reshape(self.size, *part.shape)


def processes_of_chips(count: int, split: str, *, parallel: bool = False) -> MeshProcesses | None:
    """The processes that a program's chips belong to; joins those that a launcher has started.

    Args:
        count: How many chips there are altogether.
        split: What they divide, as ``--tensor-parallel`` has it.
        parallel: Whether the processes are to be replicas: each has chips of its own then.

    Returns:
        The processes; None where there is one only, or each is a replica.

    Raises:
        ArgumentError: If the number of chips is not a multiple of theirs.
        Disagreement: If others have other numbers of chips, or divide something else.
        DataParallelError: If the others do not come, or jax runs already.

    Example:
        >>> processes_of_chips(1, "none") is None
        True
    """
    if not isinstance(count, int) or count < 2 or split == "none":
        return None
    job = jobs.current()
    if job is None:
        launch = None if parallel else detect()
        if launch is None or launch.size == 1 or jobs.is_set_up():
            return None
        if count % launch.size:
            raise ArgumentError(
                where="--n-chips, or config_dict['n_chips']",
                found=f"{count} chips in {launch.size} processes ({launch.launcher})",
                wanted=f"a multiple of {launch.size}: each process has as many of them",
                hint="Start as many processes as divide the chips evenly, or give the script "
                "--data-parallel: each process is then a replica with chips of its own.",
            )
        make_host_devices(count // launch.size)
        job = jobs.start(launch, one_program=True)
    if job is None or not job.one_program:
        return None
    job.agree("--n-chips", {"--n-chips": str(count), "--tensor-parallel": split})
    return MeshProcesses(job)


def join(count: int, split: str, *, parallel: bool) -> Job | None:
    """Meet the processes that a launcher has started, as replicas or as chips of one program.

    Args:
        count, split: As for :func:`processes_of_chips`.
        parallel: Whether they are replicas.

    Returns:
        The job; None if this process is alone.

    Raises:
        ArgumentError: If the number of chips is not a multiple of the processes.
        DataParallelError: If the others do not come, or want something else.
    """
    if parallel:
        if isinstance(count, int) and count > 1 and split != "none":
            make_host_devices(count)  # the engine jax starts jax while replicas join
        return jobs.start()
    processes_of_chips(count, split)
    return jobs.current()


def pef_key(pef: str) -> str:
    """What tells a PEF from any other, in few characters: all ranks compare it.

    Args:
        pef: Its path.
    """
    with Path(pef).open("rb") as file:
        head = file.read(64)  # the envelope, with the digest of all the rest
    return hashlib.sha256(head).hexdigest()[:_DIGEST]


def _same_everywhere(control: Communicator, operation: str, values: bytes | memoryview) -> bool:
    """Compare what processes are about to do, and say whether they do it with the same values.

    Raises:
        Disagreement: If they are not about to do the same.
    """
    same, equal = same_on_all_ranks(control, [operation.encode(), values])
    if not same:
        texts = [text.decode() for text in control.gather_bytes(operation.encode())]
        raise Disagreement(when=_WHEN, facts={"next operation": texts}, who="processes")
    return equal


_WHEN = "one program on the chips of several processes"


def _other_values(
    control: Communicator, operation: str, digests: Mapping[str, bytes]
) -> Disagreement:
    """The error for values that are not the same everywhere."""
    own = {f"values of {name}": digest.hex() for name, digest in digests.items()}
    rows = control.gather_bytes(json.dumps(own).encode())
    facts = differing([json.loads(row) for row in rows])
    return Disagreement(when=operation, facts=facts, who="processes")


def _is_of_transport(error: RuntimeError) -> bool:
    """Whether XLA has raised it because another process is gone."""
    text = str(error).lower()
    return any(word in text for word in ("gloo", "connection", "socket", "timed out", "nccl"))


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _bytes(array: np.ndarray) -> memoryview:
    """An array's bytes, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
