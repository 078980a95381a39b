"""Algorithms: what replicas communicate, and when."""

from samba.distributed.bagua.algorithms.async_model_average import (
    AsyncModelAverageAlgorithm as AsyncModelAverageAlgorithm,
)
from samba.distributed.bagua.algorithms.base import Algorithm as Algorithm
from samba.distributed.bagua.algorithms.bytegrad import ByteGradAlgorithm as ByteGradAlgorithm
from samba.distributed.bagua.algorithms.decentralized import (
    DecentralizedAlgorithm as DecentralizedAlgorithm,
)
from samba.distributed.bagua.algorithms.gradient_allreduce import (
    GradientAllReduceAlgorithm as GradientAllReduceAlgorithm,
)
from samba.distributed.bagua.algorithms.low_precision_decentralized import (
    LowPrecisionDecentralizedAlgorithm as LowPrecisionDecentralizedAlgorithm,
)
from samba.distributed.bagua.algorithms.qadam import QAdamAlgorithm as QAdamAlgorithm
from samba.distributed.bagua.algorithms.qadam import QAdamOptimizer as QAdamOptimizer
