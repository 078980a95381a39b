"""The place of a process among its replicas, as its launcher tells, and its share of the cores."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samba.errors import ArgumentError, literal

_SIZE_BY_HAND = "WORLD_SIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The place of this process among its replicas.

    Args:
        launcher: Who started it: ``"torch"`` (torchrun, this project's launcher, or variables
            set by hand), ``"mpich"`` (and whoever else speaks PMI, such as PALS), ``"openmpi"``,
            ``"mvapich"``, ``"jsm"`` (jsrun), ``"flux"``, ``"slurm"``, ``"pals"`` or ``"pmix"``.
        rank: Number of this process, from 0.
        size: How many processes there are.
        local_rank: Number of this process among those of its host.
        local_size: How many processes its host has; 0 if the launcher does not tell.
        address: Host and port at which rank 0 can be met; None if all must be on one host.
        job: What the processes of this job have in common and those of others have not; empty
            if the launcher does not tell.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    address: tuple[str, int] | None = None
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Names of one launcher's variables.

    Args:
        launcher: Its name.
        rank, size: Variables that all processes have.
        local_rank, local_size: Variables of a host's processes; the first that is set counts.
        job: Variables that tell one job from another.
    """

    launcher: str
    rank: str
    size: str
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    job: tuple[str, ...] = ()


def _prefixed(launcher: str, prefix: str, *job: str) -> _Family:
    """A launcher whose variables have one prefix and the usual names."""
    return _Family(
        launcher=launcher,
        rank=f"{prefix}RANK",
        size=f"{prefix}SIZE",
        local_rank=(f"{prefix}LOCAL_RANK",),
        local_size=(f"{prefix}LOCAL_SIZE",),
        job=job,
    )


FAMILIES = (
    _Family(
        launcher="torch",
        rank="RANK",
        size=_SIZE_BY_HAND,
        local_rank=("LOCAL_RANK",),
        local_size=("LOCAL_WORLD_SIZE",),
    ),
    _Family(
        launcher="mpich",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        local_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ),
    _prefixed("openmpi", "OMPI_COMM_WORLD_", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
    _prefixed("mvapich", "MV2_COMM_WORLD_"),
    _prefixed("jsm", "JSM_NAMESPACE_"),
    _Family(
        launcher="flux",
        rank="FLUX_TASK_RANK",
        size="FLUX_JOB_SIZE",
        local_rank=("FLUX_TASK_LOCAL_ID",),
        job=("FLUX_JOB_ID",),
    ),
    _Family(
        launcher="slurm",
        rank="SLURM_PROCID",
        size="SLURM_NTASKS",
        local_rank=("SLURM_LOCALID",),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID"),
    ),
    _Family(
        launcher="pals",
        rank="PALS_RANKID",
        size=_SIZE_BY_HAND,
        local_rank=("PALS_LOCAL_RANKID",),
        local_size=("PALS_LOCAL_SIZE",),
        job=("PALS_APID",),
    ),
    _Family(
        launcher="pmix",
        rank="PMIX_RANK",
        size=_SIZE_BY_HAND,
        local_rank=("PMIX_LOCAL_RANK",),
        job=("PMIX_NAMESPACE",),
    ),
)
"""Launchers in the order in which they are looked for. Those that are asked for on purpose come
first: inside of a Slurm allocation one may still use mpirun or torchrun. The last ones tell a rank
but no size in their variables: that is to be set by hand."""


def detect(env: Mapping[str, str] | None = None) -> Launch | None:
    """Find out which replica this process is.

    Args:
        env: Environment variables, those of the process if None.

    Returns:
        What the launcher tells, None if there is none.

    Raises:
        ArgumentError: If its variables contradict each other.

    Example:
        >>> launch = detect({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"})
        >>> launch.launcher, launch.rank, launch.size, launch.local_rank
        ('mpich', 1, 2, 1)
        >>> detect({}) is None
        True
    """
    env = os.environ if env is None else env
    for family in FAMILIES:
        if not env.get(family.rank):
            continue
        if not env.get(family.size):
            if family.size == _SIZE_BY_HAND and family.launcher != "torch":
                raise _without_size(family, env[family.rank])
            continue
        if family.launcher == "slurm" and _is_batch_script(env):
            continue
        rank, size = _number(env, family.rank), _number(env, family.size)
        if family.launcher == "slurm" and env.get("SLURM_STEP_NUM_TASKS"):
            size = _number(env, "SLURM_STEP_NUM_TASKS")
        if not 0 <= rank < size:
            raise ArgumentError(
                where=f"environment variables {family.rank} and {family.size}",
                found=f"rank {rank} of {size}",
                wanted="a rank from 0 to one less than the size",
            )
        local_rank = _first(env, family.local_rank)
        return Launch(
            launcher=family.launcher,
            rank=rank,
            size=size,
            local_rank=rank if local_rank is None else local_rank,
            local_size=_local_size(env, family, size),
            address=_address(env, family),
            job=_job(env, family),
        )
    return None


def _without_size(family: _Family, rank: str) -> ArgumentError:
    return ArgumentError(
        where=f"environment variable {family.rank}",
        found=f"rank {literal(rank)}, and no variable that tells how many replicas there are",
        wanted=f"{_SIZE_BY_HAND} beside it",
        hint=f"Have the launcher pass {_SIZE_BY_HAND} on to all replicas.",
    )


LAST_PORT = 65_535
"""The highest number that a port can have."""
_DIGITS, _MOST_NODES = 18, 1_000_000


def _number(env: Mapping[str, str], name: str) -> int:
    text = env[name]
    if not _is_whole(text):
        raise ArgumentError(
            where=f"environment variable {name}", found=literal(text), wanted="a whole number"
        )
    return int(text)


def _is_whole(text: str) -> bool:
    # isdigit alone takes characters such as "²", of which int makes no number.
    return text.isascii() and text.isdigit() and len(text) < _DIGITS


def _is_batch_script(env: Mapping[str, str]) -> bool:
    """Whether this is the script of a Slurm job itself, which is one process and not N."""
    return bool(env.get("SLURM_JOB_ID")) and not any(
        env.get(name) for name in ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST")
    )


def _local_size(env: Mapping[str, str], family: _Family, size: int) -> int:
    if family.launcher == "flux":
        return size if env.get("FLUX_JOB_NNODES") == "1" else 0
    if family.launcher == "slurm":
        # "2(x3),1": two tasks on each of three hosts, one on the next.
        text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
        counts: list[int] = []
        for part in filter(None, text.split(",")):
            match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part)
            if match is None or int(match[2] or 1) > _MOST_NODES:
                return 0
            counts += [int(match[1])] * int(match[2] or 1)
        node = env.get("SLURM_NODEID", "0")
        if _is_whole(node) and int(node) < len(counts):
            return min(size, counts[int(node)])
        return 0
    return _first(env, family.local_size) or 0


def _first(env: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The number in the first of some variables that is set; None if none is."""
    return next((_number(env, name) for name in names if env.get(name)), None)


def _address(env: Mapping[str, str], family: _Family) -> tuple[str, int] | None:
    if bool(env.get("MASTER_ADDR")) != bool(env.get("MASTER_PORT")):
        raise ArgumentError(
            where="environment variables MASTER_ADDR and MASTER_PORT",
            found="one of the two",
            wanted="both, or on a single host neither",
        )
    if env.get("MASTER_ADDR"):
        port = _number(env, "MASTER_PORT")
        if port > LAST_PORT:
            raise ArgumentError(
                where="environment variable MASTER_PORT",
                found=str(port),
                wanted=f"a port, {LAST_PORT} at most",
            )
        return env["MASTER_ADDR"], port
    if family.launcher == "slurm":
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        count = env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or "1"
        if nodes and count != "1":
            # No process can tell another a port before they meet: all compute the same one.
            key = _job(env, family).encode()
            return first_host(nodes), 20000 + zlib.crc32(key) % 40000
    return None


def _job(env: Mapping[str, str], family: _Family) -> str:
    return "-".join(env[name] for name in family.job if env.get(name))


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list.

    Example:
        >>> first_host("gpu[03-04,09],login1"), first_host("r[1-2]n[01-04]"), first_host("b07")
        ('gpu03', 'r1n01', 'b07')
    """
    first = re.match(r"(?:[^,\[\]]|\[\d[^\[\]]*\])+(?=,|$)", nodes)
    if first is None:
        raise ArgumentError(
            where="environment variable SLURM_JOB_NODELIST",
            found=repr(nodes),
            wanted="a list of hosts",
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def share_of_cores(
    cores: Sequence[int], local_rank: int, local_size: int, least: int = 1
) -> list[int]:
    """The cores of one replica.

    Args:
        cores: Cores that all replicas of the host may use.
        local_rank: Number of the replica on its host.
        local_size: How many replicas the host has.
        least: How many cores each of them needs.

    Returns:
        Its cores; all of them if there are fewer than they need.

    Example:
        >>> share_of_cores(range(8), 1, 3), share_of_cores([0, 1], 2, 4)
        ([3, 4, 5], [0, 1])
    """
    each = len(cores) // local_size
    if each < least:
        return list(cores)
    extra = len(cores) - each * local_size  # the first replicas get one more
    first = local_rank * each + min(local_rank, extra)
    return list(cores[first : first + each + (local_rank < extra)])


def divide_cores(launch: Launch, least: int = 1) -> None:
    """Keep this replica to its share of the host's cores and torch to as many threads.

    A launcher that has bound its processes already has done that; then only torch's threads are
    set. ``OMP_NUM_THREADS`` goes before.

    Args:
        launch: Which replica this is.
        least: How many cores each of them needs; where there are fewer, none is kept to a share.
    """
    local_size = launch.local_size or (launch.size if launch.address is None else 0)
    if local_size < 2 or not hasattr(os, "sched_getaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == os.cpu_count():
        allowed = share_of_cores(allowed, launch.local_rank % local_size, local_size, least)
        os.sched_setaffinity(0, allowed)
    if "OMP_NUM_THREADS" not in os.environ:
        import torch  # noqa: PLC0415  # help texts of commands come without it

        torch.set_num_threads(len(allowed))
