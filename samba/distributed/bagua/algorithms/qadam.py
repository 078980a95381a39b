"""qadam: Adam that averages gradients at first, and its compressed first moment afterwards.

Source: 1-bit Adam (arXiv:2102.02888), with MinMaxUInt8 as in Bagua (arXiv:2107.01499).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from samba.distributed.bagua.algorithms.base import (
    GradientAlgorithm,
    fill_buckets,
    gradients_of,
)
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.tensor import ensure_bagua_tensor
from samba.errors import ArgumentError
from samba.settings import bucket_bytes

if TYPE_CHECKING:
    from samba.distributed.bagua.replica import Replica


class QAdamOptimizer(torch.optim.Optimizer):
    """Adam for ``warmup_steps`` steps, and Adam with a frozen second moment afterwards.

    After the warm-up :class:`QAdamAlgorithm` computes and averages the first moment; a step then
    uses it as it is. The second moment keeps its value and its bias correction.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        warmup_steps: Steps of plain Adam; 1 or more.
        betas: Decay of the two moments.
        eps: Added to the denominator.
        weight_decay: Times the weight, added to the gradient.

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
            "lr": (lr, lr >= 0, "0 or more"),
            "warmup_steps": (warmup_steps, warmup_steps > 0, "1 or more"),
            "betas": (betas, all(0 <= b < 1 for b in betas), "from 0 to below 1"),
            "eps": (eps, eps >= 0, "0 or more"),
            "weight_decay": (weight_decay, weight_decay >= 0, "0 or more"),
        }
        bad = {name: (value, want) for name, (value, fine, want) in wrong.items() if not fine}
        if bad:
            raise ArgumentError(
                where="QAdamOptimizer",
                found=", ".join(f"{name}={value}" for name, (value, _) in bad.items()),
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
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch overloads it
        """Change the parameters.

        Args:
            closure: Computes the loss anew; called first if given.

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
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if state["step"] <= self.warmup_steps:
            grad = self.decayed(parameter, group)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = math.sqrt(1 - beta2 ** min(state["step"], self.warmup_steps))
        denominator = (square.sqrt() / correction).add_(group["eps"])
        rate = group["lr"] / (1 - beta1 ** state["step"])
        parameter.addcdiv_(mean, denominator, value=-rate)

    def decayed(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """A parameter's gradient with its weight decay.

        Args:
            parameter: The parameter.
            group: Its group.
        """
        assert parameter.grad is not None  # the callers have looked
        if not group["weight_decay"]:
            return parameter.grad
        return parameter.grad.add(parameter, alpha=group["weight_decay"])


class QAdamAlgorithm(GradientAlgorithm):
    """Averages gradients while the optimizer warms up, then first moments in 8 bits.

    Args:
        q_adam_optimizer: The optimizer of all trained parameters.
        hierarchical: Reduce on each host first.
    """

    name = "qadam"

    def __init__(self, q_adam_optimizer: QAdamOptimizer, hierarchical: bool = True) -> None:
        if not isinstance(q_adam_optimizer, QAdamOptimizer):
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"a {type(q_adam_optimizer).__name__}",
                wanted="a QAdamOptimizer",
            )
        self.optimizer, self.hierarchical = q_adam_optimizer, hierarchical
        self._warming: bool | None = None

    @property
    def _warm(self) -> bool:
        return self.optimizer.steps_done < self.optimizer.warmup_steps

    def need_reset(self) -> bool:
        return self._warming != self._warm

    def init_tensors(self, replica: Replica) -> list[torch.Tensor]:
        self._warming = self._warm
        groups = {id(p): g for g in self.optimizer.param_groups for p in g["params"]}
        missing = [name for name, p in replica.parameters.items() if id(p) not in groups]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that the optimizer does not have",
                wanted="all trained parameters in the QAdamOptimizer",
            )
        tensors = gradients_of(replica)
        if self._warming:
            return tensors
        return [
            ensure_bagua_tensor(p, getter_closure=self._moment, setter_closure=self._set_moment)
            for p in tensors
        ]

    def _moment(self, parameter: Any) -> torch.Tensor:
        return self.optimizer.state_of(parameter)["exp_avg"]

    def _set_moment(self, parameter: Any, value: torch.Tensor) -> None:
        self.optimizer.state_of(parameter)["exp_avg"] = value

    def tensors_to_buckets(
        self, tensors: Sequence[torch.Tensor], replica: Replica
    ) -> list[BaguaBucket]:
        return fill_buckets(tensors, bucket_bytes(), alignment=replica.size)

    def init_operations(self, bucket: BaguaBucket, replica: Replica) -> None:
        if self._warming:
            bucket.append_centralized_synchronous_op(self.hierarchical)
            return
        groups = {id(p): g for g in self.optimizer.param_groups for p in g["params"]}

        def new_moments(_: str) -> None:
            for parameter in bucket.tensors:
                group = groups[id(parameter)]
                gradient = self.optimizer.decayed(parameter, group)
                self._moment(parameter).lerp_(gradient, 1 - group["betas"][0])

        bucket.append_python_op(new_moments)
        bucket.append_centralized_synchronous_op(
            self.hierarchical, scattergather=True, compression="MinMaxUInt8"
        )
