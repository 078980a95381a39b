"""Torch's DistributedDataParallel as a contender: one of several replicas, over gloo."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.case import Case
from bench.peers import Prepared
from bench.peers.eager import make_optimizer, to_torch, training_step


def prepare(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step; torch's default group is there."""
    return to_torch, training_step(
        DistributedDataParallel(model), make_optimizer(case.optimizer, model)
    )
