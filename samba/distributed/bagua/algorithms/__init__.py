"""Algorithms: what replicas communicate, and when."""

from samba.distributed.bagua.algorithms.async_model_average import AsyncModelAverageAlgorithm
from samba.distributed.bagua.algorithms.base import Algorithm
from samba.distributed.bagua.algorithms.decentralized import (
    DecentralizedAlgorithm,
    LowPrecisionDecentralizedAlgorithm,
)
from samba.distributed.bagua.algorithms.gradients import (
    ByteGradAlgorithm,
    GradientAllReduceAlgorithm,
    QAdamAlgorithm,
)
from samba.optim.qadam import QAdamOptimizer

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
