"""qadam: Adam that averages gradients at first, and its compressed first moment afterwards.

Source: 1-bit Adam (arXiv:2102.02888), with MinMaxUInt8 as in Bagua (arXiv:2107.01499).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samba.distributed.bagua.algorithms.base import (
    GradientAlgorithm,
    fill_buckets,
    gradients_of,
)
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.moments import Moments
from samba.distributed.bagua.trained_model import TrainedModel
from samba.distributed.settings import bucket_bytes
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.bagua import register


class QAdamAlgorithm(GradientAlgorithm):
    """Averages gradients in ``warmup_steps`` steps, then first moments in 8 bits.

    Args:
        q_adam_optimizer: The optimizer of all trained parameters.
        hierarchical: Reduce first moments on each host first. Gradients are reduced over all ranks.
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
        self._moments: Moments | None = None
        self._warming = True

    def need_reset(self) -> bool:
        return self._moments is None or self._warming != self._moments.warming

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        moments = self._moments = trained.moments(self.optimizer)
        self._warming = moments.warming
        tensors = gradients_of(trained)
        if self._warming:
            return tensors
        names = {id(p): name for name, p in trained.parameters.items()}
        for p in tensors:
            getter, setter = moments.closures(names[id(p)])
            register(p, getter_closure=getter, setter_closure=setter)
        return tensors

    def tensors_to_buckets(
        self, tensors: Sequence[torch.Tensor], trained: TrainedModel
    ) -> list[BaguaBucket]:
        return fill_buckets(tensors, bucket_bytes(), alignment=trained.size)

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        if self._warming:
            bucket.append_centralized_synchronous_op()
            return
        moments = self._moments
        assert moments is not None  # tensors come before operations

        def new_moments(_: str) -> None:
            for parameter in bucket.tensors:
                moments.update(parameter)

        bucket.append_python_op(new_moments)
        bucket.append_centralized_synchronous_op(
            self.hierarchical, scattergather=True, compression="MinMaxUInt8"
        )
