"""The folder of a script, and the number of its process among those of a job."""

from __future__ import annotations

import os

import torch

__all__ = [
    "create_mac_resource_report",
    "fix_rdu_affinity",
    "get_file_dir",
    "get_rank",
    "get_world_size",
    "is_main_process",
]


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
    return get_rank() == 0


def create_mac_resource_report(*args: object, **kwargs: object) -> None:
    """Does nothing: there is no chip whose resources could be reported."""


def fix_rdu_affinity(*args: object, **kwargs: object) -> None:
    """Does nothing: there is no chip near which a process should run."""


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
