"""PyTorch with ``torch.compile`` around the model; needs a C++ compiler."""

from __future__ import annotations

import torch
from torch import nn

from bench.case import Case
from bench.peers import Prepared
from bench.peers.eager import make_optimizer, to_torch, training_step


def prepare(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    return to_torch, training_step(torch.compile(model), make_optimizer(case.optimizer, model))
