"""bytegrad: gradients are averaged, with a byte for each number."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samba.distributed.bagua.algorithms.base import GradientAlgorithm, fill_buckets
from samba.distributed.bagua.bucket import BaguaBucket
from samba.distributed.bagua.trained_model import TrainedModel
from samba.distributed.settings import bucket_bytes


class ByteGradAlgorithm(GradientAlgorithm):
    """Averages gradients over all ranks in 8 bits, both ways; errors are not fed back.

    Args:
        hierarchical: Reduce on each host first, in full precision.
        average: The mean of the gradients; their sum if False.
    """

    name = "bytegrad"

    def __init__(self, hierarchical: bool = True, average: bool = True) -> None:
        self.hierarchical, self.average = hierarchical, average

    def tensors_to_buckets(
        self, tensors: Sequence[torch.Tensor], trained: TrainedModel
    ) -> list[BaguaBucket]:
        return fill_buckets(tensors, bucket_bytes(), alignment=trained.size)

    def init_operations(self, bucket: BaguaBucket, trained: TrainedModel) -> None:
        bucket.append_centralized_synchronous_op(
            self.hierarchical, self.average, scattergather=True, compression="MinMaxUInt8"
        )
