"""The folder of a script, its job, and the number of its process among those of the job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from samba.distributed.settings import PRESENT
from samba.errors import ArgumentError

if TYPE_CHECKING:
    from samba.distributed.job import Job  # what joins others is loaded where they are joined

_SHORT = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def get_file_dir(file: str | os.PathLike[str]) -> str:
    """Gives the folder of a file, as an absolute path with symbolic links resolved.

    Args:
        file: A path, usually ``__file__``.
    """
    return os.path.dirname(os.path.realpath(file))


def get_rank() -> int:
    """Number of this process in a data parallel run; 0 outside of one."""
    return torch.distributed.get_rank() if _distributed() else 0


def get_world_size() -> int:
    """Number of processes in a data parallel run; 1 outside of one."""
    return torch.distributed.get_world_size() if _distributed() else 1


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes checkpoints."""
    return (PRESENT.value.rank if PRESENT.value else get_rank()) == 0


def job_of_replicas(what: str) -> Job | None:
    """The replicas of this job.

    Args:
        what: What they are asked for.

    Returns:
        The job; None outside of one, and for one process.

    Raises:
        OneProgram: If its processes are not replicas, but have the chips of one program.
    """
    job: Job | None = PRESENT.value
    if job is None or job.size == 1:
        return None
    job.refuse_one_program(what)
    return job


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The dtype that a configuration names.

    Args:
        dtype: Torch's name of it, with ``torch.`` before it or not; ``bf16``, ``fp16``, ``fp32`` or
            ``fp64``; or the dtype itself.

    Raises:
        ArgumentError: There is no such dtype.

    Example:
        >>> parse_dtype("bfloat16"), parse_dtype("torch.float32"), parse_dtype("bf16")
        (torch.bfloat16, torch.float32, torch.bfloat16)
    """
    name = str(dtype).removeprefix("torch.")
    result = _SHORT.get(name, getattr(torch, name, None) if name.isidentifier() else None)
    if isinstance(result, torch.dtype):
        return result
    raise ArgumentError(
        where="utils.parse_dtype(dtype)",
        found=repr(dtype),
        wanted=f"a dtype of torch such as 'float32' or 'bfloat16', or {', '.join(_SHORT)}",
    )


def create_mac_resource_report(*args: object, **kwargs: object) -> None:
    """Does nothing: there is no chip whose resources could be reported."""


def fix_rdu_affinity(*args: object, **kwargs: object) -> None:
    """Does nothing: there is no chip near which a process should run."""


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
