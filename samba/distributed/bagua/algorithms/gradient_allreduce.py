"""Plain data parallel training: gradients are averaged."""

from __future__ import annotations

from samba.distributed.bagua.algorithms.base import GradientAlgorithm
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.trained_model import TrainedModel


class GradientAllReduceAlgorithm(GradientAlgorithm):
    """Averages gradients over all ranks.

    Args:
        hierarchical: Reduce on each host first.
        average: The mean of the gradients; their sum if False.
    """

    name = "gradient_allreduce"

    def __init__(self, hierarchical: bool = False, average: bool = True) -> None:
        self.hierarchical, self.average = hierarchical, average

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        bucket.append_centralized_synchronous_op(self.hierarchical, self.average)
