"""qadam: Adam whose first moments are averaged in 8 bits once its warm-up is over."""

from __future__ import annotations

import torch

from samba.distributed.bagua.algorithms.base import Moments, TrainedModel, gradients_of
from samba.distributed.bagua.algorithms.gradient_allreduce import GradientAlgorithm
from samba.distributed.bagua.bucket import BaguaBucket
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.support.given import flag_of
from samba.tensor.bagua import handle_of, register

__all__ = ["QAdamAlgorithm", "QAdamOptimizer"]


class QAdamAlgorithm(GradientAlgorithm):
    """Adam that averages gradients in ``warmup_steps`` steps, and then first moments in 8 bits.

    Source: 1-bit Adam (arXiv:2102.02888), with MinMaxUInt8 as in Bagua (arXiv:2107.01499).

    Args:
        q_adam_optimizer: The optimizer of all trained parameters.
        hierarchical: Reduce first moments on each host first. Gradients are reduced over all ranks.
    """

    name = "qadam"
    aligned = True

    def __init__(self, q_adam_optimizer: QAdamOptimizer, hierarchical: bool = True) -> None:
        if not isinstance(q_adam_optimizer, QAdamOptimizer):
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=type(q_adam_optimizer).__name__,
                wanted="a QAdamOptimizer",
            )
        self.optimizer = q_adam_optimizer
        self.hierarchical = flag_of(hierarchical, "QAdamAlgorithm(hierarchical=…)")
        self._moments: Moments | None = None
        self._warming = True

    def need_reset(self) -> bool:
        return self._moments is None or self._warming != self._moments.warming()

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        moments = self._moments = trained.moments(self.optimizer)
        self._warming = moments.warming()
        tensors = gradients_of(trained)
        if self._warming:
            return tensors
        for p in tensors:
            getter, setter = moments.closures[handle_of(p).name]
            register(p, getter_closure=getter, setter_closure=setter)
        return tensors

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        if self._warming:
            bucket.append_centralized_synchronous_op()
            return
        moments = self._moments
        assert moments is not None  # tensors come before operations

        def move_moments(_: str) -> None:
            """Move first moments towards this replica's gradients, without weight decay."""
            for parameter in bucket.tensors:
                name = handle_of(parameter).name
                of_gradient = trained.gradient(name)[0]
                assert of_gradient is not None  # a gradient is never the parameter itself
                of_moment, set_moment = moments.closures[name]
                moment = of_moment(parameter)
                set_moment(parameter, moment.lerp_(of_gradient(parameter), moments.rate(name)))

        bucket.append_python_op(move_moments)
        bucket.append_centralized_synchronous_op(
            self.hierarchical, scattergather=True, compression="MinMaxUInt8"
        )
