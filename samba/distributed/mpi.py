"""``init_process_group("mpi")`` where torch has no MPI: the group of the launcher's processes.

Scripts for the hardware ask torch for MPI, which its wheels do not have. What they mean is the
group of the processes that mpirun, srun, torchrun or ``python -m samba launch`` has started.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

from samba.errors import ArgumentError


def provide_mpi() -> None:
    """Let torch's ``init_process_group`` take ``"mpi"``, unless torch has MPI itself."""
    if not dist.is_available() or dist.is_mpi_available():
        return
    original = dist.init_process_group
    if hasattr(original, "samba_mpi"):
        return

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if str(backend).lower() != "mpi" or dist.is_initialized():
            original(backend, *args, **kwargs)
            return
        _join(kwargs.get("rank", -1), kwargs.get("world_size", -1))

    init_process_group.samba_mpi = True  # pyright: ignore[reportAttributeAccessIssue]  # a function's own mark
    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


def _join(rank: int, size: int) -> None:
    from samba.distributed import job  # noqa: PLC0415  # for data parallel runs only
    from samba.distributed.environment import Launch, detect  # noqa: PLC0415  # as above

    launch = detect() or Launch(launcher="torch", rank=0, size=1, local_rank=0, local_size=1)
    if rank not in (-1, launch.rank) or size not in (-1, launch.size):
        raise ArgumentError(
            where='torch.distributed.init_process_group("mpi", rank=..., world_size=...)',
            found=f"rank {rank} of {size}",
            wanted=f"rank {launch.rank} of {launch.size}, as the launcher tells, or neither",
        )
    job.start(launch)
