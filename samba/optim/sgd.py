"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from samba.optim._base import DeviceSettings

__all__ = ["SGD"]


class SGD(DeviceSettings, torch.optim.SGD):
    """Stochastic gradient descent with momentum and weight decay; torch's update rule.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        momentum: Share of the last update that is kept.
        dampening: Share of the gradient that is left out of the momentum.
        weight_decay: Factor of the parameter that is added to its gradient.
        nesterov: Whether to look ahead along the momentum.
        argin_region_name: Prefix of the names of its hyperparameters on the device.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())
