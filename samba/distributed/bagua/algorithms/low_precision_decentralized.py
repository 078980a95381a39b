"""low_precision_decentralized: neighbours in a ring tell each other compressed changes."""

from __future__ import annotations

import torch

from samba.distributed.bagua.algorithms.decentralized import WeightAlgorithm, check_interval
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.trained_model import TrainedModel
from samba.errors import ArgumentError


class LowPrecisionDecentralizedAlgorithm(WeightAlgorithm):
    """After each step every rank moves towards its two neighbours, by 8-bit messages.

    Args:
        hierarchical: Average on each host first; then hosts make the ring.
        communication_interval: Communicate after every so many-th step.
    """

    name = "low_precision_decentralized"

    def __init__(self, hierarchical: bool = True, communication_interval: int = 1) -> None:
        self.hierarchical = hierarchical
        self.interval = check_interval(communication_interval)
        self._stepped: set[int] = set()
        self._steps = 0
        self._stale = False
        self.replicas: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def weights_were_set(self) -> None:
        self._stale = True  # what the neighbours know is of no use any more

    def need_reset(self) -> bool:
        return self._stale

    def init_tensors(self, trained: TrainedModel) -> list[torch.Tensor]:
        owned = {id(p) for o in trained.optimizers for g in o.param_groups for p in g["params"]}
        missing = [name for name, p in trained.parameters.items() if id(p) not in owned]
        if missing:
            raise ArgumentError(
                where="LowPrecisionDecentralizedAlgorithm",
                found=f"parameters {missing} in no optimizer",
                wanted="all trained parameters in the optimizers given to with_bagua",
            )
        self.replicas, self._stale = [], False
        return super().init_tensors(trained)

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        # All ranks have rank 0's weights now, so the neighbours' are known.
        own, left, right = (bucket.flattened_tensor() for _ in range(3))
        self.replicas.append((own, left, right))
        bucket.append_low_precision_decentralized_synchronous_op(
            own, left, right, self.hierarchical
        )

    def after_optimizer_step(self, trained: TrainedModel, optimizer: torch.optim.Optimizer) -> None:
        self._stepped.add(id(optimizer))
        if len(self._stepped) < len(trained.optimizers):
            return
        self._stepped.clear()
        if self._steps % self.interval == 0:
            self.mark_all(trained)
            trained.backend.wait_pending_comm_ops()
        self._steps += 1
