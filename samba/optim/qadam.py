"""QAdamOptimizer: Adam whose first moment others compute after a warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from samba.errors import ArgumentError
from samba.support.given import as_number


class QAdamOptimizer(torch.optim.Optimizer):
    """Adam before step ``warmup_steps``; from it on the moments are what others make of them.

    As upstream's: both moments move in the steps before ``warmup_steps`` and in none from it on,
    while both bias corrections go on. After that step :class:`QAdamAlgorithm` computes and averages
    the first moment, without the weight decay, and the second one keeps its value. With
    ``warmup_steps=1`` that value is zero, and steps are as large as ``eps`` is small. The same rule
    runs on the device, where ``weight_decay`` and ``lr`` are argins.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        warmup_steps: The first step in which the moments stay; 1 or more.
        betas: Decay of the two moments.
        eps: Added to the denominator.
        weight_decay: Times the weight, added to the gradient that moves the moments.

    Raises:
        ArgumentError: If a value is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        wrong = {
            "lr": (lr, as_number(lr) >= 0, "0 or more"),
            "warmup_steps": (warmup_steps, as_number(warmup_steps) > 0, "1 or more"),
            "betas": (betas, all(0 <= as_number(b) < 1 for b in betas), "from 0 to below 1"),
            "eps": (eps, as_number(eps) >= 0, "0 or more"),
            "weight_decay": (weight_decay, as_number(weight_decay) >= 0, "0 or more"),
        }
        bad = {name: (value, want) for name, (value, fine, want) in wrong.items() if not fine}
        if bad:
            raise ArgumentError(
                where="QAdamOptimizer",
                found=", ".join(f"{name}={value!r}" for name, (value, _) in bad.items()),
                wanted=", ".join(f"{name} {want}" for name, (_, want) in bad.items()),
            )
        self.warmup_steps = warmup_steps
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """A parameter's state, made if it has none.

        Args:
            parameter: The parameter.
        """
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter.data)
            state["exp_avg_sq"] = torch.zeros_like(parameter.data)
        return state

    @property
    def steps_done(self) -> int:
        """How many steps have been made."""
        return max((int(s["step"]) for s in self.state.values() if s), default=0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters.

        Args:
            closure: Computes the loss again; called first if given.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, group)
        return loss

    def _change(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state_of(parameter), group["betas"]
        # The device's count comes as a tensor; powers of it would be rounded to float32.
        step = state["step"] = int(state["step"]) + 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if step < self.warmup_steps:
            grad = _decayed(parameter, group)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = math.sqrt(1 - beta2**step)
        denominator = (square.sqrt() / correction).add_(group["eps"])
        rate = group["lr"] / (1 - beta1**step)
        parameter.addcdiv_(mean, denominator, value=-rate)


def _decayed(parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """A parameter's gradient with its weight decay."""
    assert parameter.grad is not None  # the caller has looked
    if not group["weight_decay"]:
        return parameter.grad
    return parameter.grad.add(parameter, alpha=group["weight_decay"])
