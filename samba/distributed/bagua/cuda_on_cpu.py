"""Scripts that move everything to CUDA, on a machine without it: the calls mean the CPU."""

from __future__ import annotations

from typing import Any

import torch

from samba.errors import ArgumentError
from samba.support.patches import Patches

__all__ = ["cuda_means_cpu", "cuda_means_cuda"]


def _stays(self: Any, *_: Any, **__: Any) -> Any:
    """What it is called on, in host memory as before."""
    return self


# torch._dynamo has a rule for each function of torch.cuda; each must be an object of its own.


def _set_device(*_: Any, **__: Any) -> None:
    """Do nothing: there is no device to choose."""


def _synchronize(*_: Any, **__: Any) -> None:
    """Do nothing: nothing runs beside the program."""


def _is_available() -> bool:
    """True: scripts that end without CUDA shall go on."""
    return True


_patches = Patches(
    (
        (torch.Tensor, "cuda", _stays),
        (torch.nn.Module, "cuda", _stays),
        (torch.cuda, "is_available", _is_available),
        (torch.cuda, "set_device", _set_device),
        (torch.cuda, "synchronize", _synchronize),
    )
)


def cuda_means_cpu() -> None:
    """Have scripts that need CUDA run on the CPU, until :func:`cuda_means_cuda`.

    ``tensor.cuda()`` and ``module.cuda()`` return what they are called on,
    ``torch.cuda.is_available()`` says True, ``set_device`` and ``synchronize`` do nothing. A device
    that is named, as in ``tensor.to("cuda")``, is refused by torch as before.

    Raises:
        ArgumentError: If the machine has CUDA.
    """
    if not _patches.applied and torch.cuda.is_available():
        raise ArgumentError(
            where="cuda_means_cpu",
            found="a machine with CUDA",
            wanted="one without",
            hint="Hide the devices with CUDA_VISIBLE_DEVICES=''.",
        )
    _patches.apply()


def cuda_means_cuda() -> None:
    """Undo :func:`cuda_means_cpu`."""
    _patches.undo()
