"""Adam, and its relatives AdamW, Adamax, NAdam and RAdam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from samba.optim._base import DeviceSettings

__all__ = ["Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdamW"]


class Adam(DeviceSettings, torch.optim.Adam):
    """Adam with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Factor of the parameter that is added to its gradient.
        amsgrad: Whether to divide by the largest second moment so far.
        max_grad_norm, fp32_params, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        amsgrad: bool = False,
        max_grad_norm: float | None = None,
        fp32_params: bool = False,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())


class AdamW(DeviceSettings, torch.optim.AdamW):
    """Adam with decoupled weight decay; torch's update rule, SambaFlow's defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square. The second default
            differs from torch's.
        eps: Added to the denominator.
        weight_decay: Share of the parameter that a step of length 1 takes away. The default
            differs from torch's.
        amsgrad: Whether to divide by the largest second moment so far.
        max_grad_norm, fp32_params, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.997),
        eps: float = 1e-08,
        weight_decay: float = 0,
        amsgrad: bool = False,
        max_grad_norm: float | None = None,
        fp32_params: bool = False,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())


class SparseAdamW(AdamW):
    """AdamW under the name that scripts use for embedding tables.

    Gradients are dense on the device and here, so it updates every row as :class:`AdamW` does,
    those without a gradient in this step too.
    """


class Adamax(DeviceSettings, torch.optim.Adamax):
    """Adamax with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        betas: Decay of the running mean of the gradient and of its largest size.
        eps: Added to the size of each gradient.
        weight_decay: Factor of the parameter that is added to its gradient.
        maximize: Whether to climb.
        max_grad_norm, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())


class NAdam(DeviceSettings, torch.optim.NAdam):
    """NAdam with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Factor of the parameter that is added to its gradient.
        momentum_decay: How fast the momentum comes to its full size.
        decoupled_weight_decay: Whether weight decay takes a share of the parameter instead, as
            AdamW's.
        maximize: Whether to climb.
        max_grad_norm, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        momentum_decay: float = 0.004,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())


class RAdam(DeviceSettings, torch.optim.RAdam):
    """RAdam with torch's update rule and defaults.

    Args:
        params: Parameters, parameter groups, or an iterable of either.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Factor of the parameter that is added to its gradient.
        decoupled_weight_decay: Whether weight decay takes a share of the parameter instead, as
            AdamW's.
        maximize: Whether to climb.
        max_grad_norm, argin_region_name: As :class:`DeviceSettings` has them.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        self._begin(locals())
