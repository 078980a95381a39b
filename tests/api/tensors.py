"""Small SambaTensors, and what is in them."""

from __future__ import annotations

import torch

import samba


def counting(*shape: int, **labels) -> samba.SambaTensor:
    """Numbers from 0 on, and a plain twin of them is ``.torch()``."""
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    return samba.SambaTensor(values, **labels)


def values(tensor: torch.Tensor) -> list:
    assert type(tensor) is samba.SambaTensor
    return tensor.tolist()
