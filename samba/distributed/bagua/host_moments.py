"""First moments in a torch optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from samba.distributed.bagua.moments import Moments
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.bagua_handle import Closures


class HostMoments(Moments):
    """Moments in a torch optimizer.

    Args:
        optimizer: The optimizer.
        parameters: The trained parameters by name.

    Raises:
        ArgumentError: If the optimizer lacks one of them.
    """

    def __init__(
        self, optimizer: QAdamOptimizer, parameters: Mapping[str, torch.nn.Parameter]
    ) -> None:
        self._optimizer = optimizer
        self._groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        missing = [name for name, p in parameters.items() if id(p) not in self._groups]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that the optimizer does not have",
                wanted="all trained parameters in the QAdamOptimizer",
            )

    @property
    def warming(self) -> bool:
        return self._optimizer.steps_done < self._optimizer.warmup_steps

    def closures(self, name: str) -> Closures:
        return self._moment, self._set_moment

    def _moment(self, parameter: Any) -> torch.Tensor:
        return self._optimizer.state_of(parameter)["exp_avg"]

    def _set_moment(self, parameter: Any, value: torch.Tensor) -> None:
        self._optimizer.state_of(parameter)["exp_avg"] = value

    def update(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None  # it was made when its bucket was
        rate = 1 - self._groups[id(parameter)]["betas"][0]
        self._moment(parameter).lerp_(parameter.grad, rate)
