from samba.distributed.bagua.algorithms import (
    Algorithm as Algorithm,
    AsyncModelAverageAlgorithm as AsyncModelAverageAlgorithm,
    ByteGradAlgorithm as ByteGradAlgorithm,
    DecentralizedAlgorithm as DecentralizedAlgorithm,
    GradientAllReduceAlgorithm as GradientAllReduceAlgorithm,
    LowPrecisionDecentralizedAlgorithm as LowPrecisionDecentralizedAlgorithm,
    QAdamAlgorithm as QAdamAlgorithm,
    QAdamOptimizer as QAdamOptimizer,
)
