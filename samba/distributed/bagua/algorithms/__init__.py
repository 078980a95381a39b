"""Algorithms: what replicas communicate, and when."""

from samba.distributed.bagua.algorithms.base import Algorithm as Algorithm
from samba.distributed.bagua.algorithms.gradient_allreduce import (
    GradientAllReduceAlgorithm as GradientAllReduceAlgorithm,
)
