"""Algorithms: what replicas communicate, and when. Modules have the names of upstream's."""

from samba.distributed.bagua.algorithms.async_model_average import (
    AsyncModelAverageAlgorithm as AsyncModelAverageAlgorithm,
)
from samba.distributed.bagua.algorithms.base import Algorithm as Algorithm
from samba.distributed.bagua.algorithms.bytegrad import ByteGradAlgorithm as ByteGradAlgorithm
from samba.distributed.bagua.algorithms.decentralized import (
    DecentralizedAlgorithm as DecentralizedAlgorithm,
    LowPrecisionDecentralizedAlgorithm as LowPrecisionDecentralizedAlgorithm,
)
from samba.distributed.bagua.algorithms.gradient_allreduce import (
    GradientAllReduceAlgorithm as GradientAllReduceAlgorithm,
)
from samba.distributed.bagua.algorithms.q_adam import (
    QAdamAlgorithm as QAdamAlgorithm,
    QAdamOptimizer as QAdamOptimizer,
)
