"""Algorithms: what replicas communicate, and when. Modules have the names of upstream's."""

from samba.distributed.bagua.algorithms.async_model_average import AsyncModelAverageAlgorithm
from samba.distributed.bagua.algorithms.base import Algorithm
from samba.distributed.bagua.algorithms.bytegrad import ByteGradAlgorithm
from samba.distributed.bagua.algorithms.decentralized import (
    DecentralizedAlgorithm,
    LowPrecisionDecentralizedAlgorithm,
)
from samba.distributed.bagua.algorithms.gradient_allreduce import GradientAllReduceAlgorithm
from samba.distributed.bagua.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer

__all__ = [
    "Algorithm",
    "AsyncModelAverageAlgorithm",
    "ByteGradAlgorithm",
    "DecentralizedAlgorithm",
    "GradientAllReduceAlgorithm",
    "LowPrecisionDecentralizedAlgorithm",
    "QAdamAlgorithm",
    "QAdamOptimizer",
]
