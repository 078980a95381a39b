"""This project, used as a SambaFlow script with ``--data-parallel`` uses it."""

from __future__ import annotations

import torch
from torch import nn

import samba
from bench.case import Case
from bench.peers import Prepared
from bench.peers.eager import to_torch
from bench.peers.ours import put_on_device


def prepare(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step, which may be told its mode."""
    tensors, loss_only = put_on_device(case, model, data_parallel=True)
    run, to_host = samba.session.run, samba.to_torch

    def step(batch: tuple[torch.Tensor, ...], mode: str = "normal") -> float:
        outputs = run(
            tensors(batch),
            loss_only,
            data_parallel=True,
            reduce_on_rdu=True,
            data_parallel_mode=mode,
        )
        return to_host(outputs[0]).item()

    return to_torch, step
