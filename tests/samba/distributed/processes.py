"""Replicas as real processes, for tests: with a hard end, and none left behind."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.processes import ended

ROOT = Path(__file__).parents[3]

_LAUNCHERS = ("PMI_", "OMPI_", "PMIX_", "SLURM_", "MPI_", "TORCHELASTIC_", "MASTER_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A replica that has ended.

    Args:
        code: Its exit code, negative for a signal.
        out: What it printed.
        err: What it printed as errors.
        time: When it ended, as ``time.time()`` counts.
        left: Whether a process that it had started was still there then.
    """

    code: int
    out: str
    err: str
    time: float
    left: bool


@functools.cache
def _cache() -> str:
    """A cache folder that all replicas share, so that only the first of a kind compiles."""
    if "TEST_CACHE" in os.environ:
        return os.environ["TEST_CACHE"]
    folder = tempfile.TemporaryDirectory(prefix="replicas-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder.name


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what launchers set, and with a cache of executables."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHERS) and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    own = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "EMULATOR_CACHE": _cache()}
    return env | own | more


def in_place(command: Sequence[str]) -> list[str]:
    """A command that is forked, whatever starts it, with the environment of ``for_children``."""
    python = warm.for_children()["WARM_PYTHON"]
    return [python if word == sys.executable else word for word in command]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def worker(name: str) -> list[str]:
    """The command of a worker of this folder."""
    return [sys.executable, "-m", f"tests.samba.distributed.workers.{name}"]


def launch(size: int, *options: str) -> list[str]:
    """The command of this project's launcher; the script follows."""
    return [sys.executable, "-m", "samba", "launch", "-n", str(size), *options]


def torchrun(size: int, *options: str) -> list[str]:
    module = [sys.executable, "-m", "torch.distributed.run"]
    return [*module, "--standalone", f"--nproc-per-node={size}", *options]


def mpirun(size: int) -> list[str]:
    found = Path(sys.executable).with_name("mpirun")
    assert found.exists(), "the extra 'test' brings mpich, and it mpirun"
    return [str(found), "-np", str(size), sys.executable]


def run_replicas(
    size: int,
    command: Sequence[str],
    *arguments: str,
    seconds: float,
    env: Mapping[str, str] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> list[Ended]:
    """Run a command of Python once per rank with plain variables, and wait for all.

    Args:
        size: How many.
        command: The command; ``arguments`` follow it.
        seconds: After so long, whoever still runs is killed; a stopped process counts as one.
        env: Variables for all.
        own: Variables for single ranks.

    Returns:
        How they ended, by rank.
    """
    port = free_port()
    common = clean_environment(WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), **(env or {}))
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        processes = []
        for rank in range(size):
            with (
                open(f"{folder}/{rank}.out", "wb") as out,
                open(f"{folder}/{rank}.err", "wb") as err,
            ):
                processes.append(
                    warm.start(
                        [*command, *arguments],
                        cwd=ROOT,
                        env=common
                        | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                        | dict((own or {}).get(rank, {})),
                        stdout=out.fileno(),
                        stderr=err.fileno(),
                        new_session=True,
                    )
                )
        ends: dict[int, float] = {}
        left = set[int]()
        try:
            while len(ends) < size and time.monotonic() - start < seconds:
                for rank, process in enumerate(processes):
                    if rank not in ends and process.poll() is not None:
                        ends[rank] = time.time()
                if len(ends) < size and all(
                    rank in ends or is_stopped(process.pid)
                    for rank, process in enumerate(processes)
                ):
                    break  # nobody is left who could go on
                time.sleep(0.05)
        finally:
            left |= {rank for rank in ends if group_exists(processes[rank].pid)}
            for process in processes:
                kill_group(process.pid)
                ended(process)
        return [
            Ended(
                code=process.returncode,
                out=Path(f"{folder}/{rank}.out").read_text(errors="replace"),
                err=Path(f"{folder}/{rank}.err").read_text(errors="replace"),
                time=ends.get(rank, time.time()),
                left=rank in left,
            )
            for rank, process in enumerate(processes)
        ]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def group_exists(pid: int) -> bool:
    """Whether the group that a process led has any process."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_group(pid: int) -> None:
    """Kill a process that leads a group, and its group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def all_well(ended: Sequence[Ended]) -> None:
    """Every replica ended with code 0."""
    bad = [f"rank {r}: code {e.code}\n{e.out}\n{e.err}" for r, e in enumerate(ended) if e.code]
    assert not bad, "\n".join(bad)
