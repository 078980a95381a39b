"""bytegrad: gradients are averaged in 8 bits."""

from __future__ import annotations

from samba.distributed.bagua.algorithms.base import TrainedModel
from samba.distributed.bagua.algorithms.gradient_allreduce import GradientAlgorithm
from samba.distributed.bagua.bucket import BaguaBucket
from samba.support.given import flag_of


class ByteGradAlgorithm(GradientAlgorithm):
    """Averages gradients over all ranks in 8 bits, both ways; errors are not fed back.

    Args:
        hierarchical: Reduce on each host first, in full precision.
        average: The mean of the gradients; their sum if False.
    """

    name = "bytegrad"
    aligned = True

    def __init__(self, hierarchical: bool = True, average: bool = True) -> None:
        self.hierarchical = flag_of(hierarchical, "ByteGradAlgorithm(hierarchical=…)")
        self.average = flag_of(average, "ByteGradAlgorithm(average=…)")

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        bucket.append_centralized_synchronous_op(
            self.hierarchical, self.average, scattergather=True, compression="MinMaxUInt8"
        )
