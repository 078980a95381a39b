"""Algorithms that communicate gradients, or what is made of them, as the backward pass goes on."""

from __future__ import annotations

import torch

from samba.distributed.bagua.algorithms.base import Algorithm, TrainedModel
from samba.distributed.bagua.bucket import BaguaBucket
from samba.support.given import flag_of
from samba.tensor.bagua import bagua_mark_communication_ready


class GradientAlgorithm(Algorithm):
    """Communicates each parameter's effective tensor when its gradient is there."""

    def gradient_ready(self, parameter: torch.nn.Parameter, trained: TrainedModel) -> None:
        bagua_mark_communication_ready(parameter)

    def after_backward(self, trained: TrainedModel) -> None:
        trained.backend.wait_pending_comm_ops()


class GradientAllReduceAlgorithm(GradientAlgorithm):
    """Averages gradients over all ranks.

    Args:
        hierarchical: Reduce on each host first.
        average: The mean of the gradients; their sum if False.
    """

    name = "gradient_allreduce"

    def __init__(self, hierarchical: bool = False, average: bool = True) -> None:
        self.hierarchical = flag_of(hierarchical, "GradientAllReduceAlgorithm(hierarchical=…)")
        self.average = flag_of(average, "GradientAllReduceAlgorithm(average=…)")

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        bucket.append_centralized_synchronous_op(self.hierarchical, self.average)
