"""Stochastic gradient descent, and steps by a history of squared gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from samba.optim._base import DeviceSettings

__all__ = ["SGD", "Adadelta", "Adagrad", "RMSprop"]


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


class RMSprop(DeviceSettings, torch.optim.RMSprop):
    """RMSprop with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        alpha: Decay of the running mean of the squared gradient.
        eps: Added to the denominator.
        weight_decay: Factor of the parameter that is added to its gradient.
        momentum: Share of the last update that is kept.
        centered: Whether to take the square of the running mean of the gradient off the
            denominator's square.
        maximize: Whether to climb.
        max_grad_norm, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-08,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())


class Adagrad(DeviceSettings, torch.optim.Adagrad):
    """Adagrad with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        lr_decay: How much a step adds to what the learning rate is divided by.
        weight_decay: Factor of the parameter that is added to its gradient.
        initial_accumulator_value: What the sums of squared gradients start from.
        eps: Added to the denominator.
        maximize: Whether to climb.
        max_grad_norm, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # its states are made here, plain ones
            self._begin(locals())


class Adadelta(DeviceSettings, torch.optim.Adadelta):
    """Adadelta with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Factor of each change.
        rho: Decay of the running means of the squared gradient and of the squared change.
        eps: Added to both before their roots are taken.
        weight_decay: Factor of the parameter that is added to its gradient.
        maximize: Whether to climb.
        max_grad_norm, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-06,
        weight_decay: float = 0,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())
