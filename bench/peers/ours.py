"""This project, used as a SambaFlow script uses it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping

import torch
from torch import nn

import samba
from bench.case import Case, Sgd
from bench.peers import Prepared
from bench.peers.eager import to_torch
from samba import utils

Inputs = Callable[[tuple[torch.Tensor, ...]], list[samba.SambaTensor]]
"""Makes the inputs of a step."""


def _make_optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    settings = case.optimizer
    if isinstance(settings, Sgd):
        return samba.optim.SGD(
            model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    return samba.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


def put_on_device(
    case: Case, model: nn.Module, *, data_parallel: bool = False
) -> tuple[Inputs, tuple[samba.SambaTensor, ...]]:
    """Compile a case to a PEF and load that.

    Args:
        case: The case.
        model: Its model.
        data_parallel: Whether the PEF is for replicas.

    Returns:
        What makes inputs of a batch, and the loss among the model's outputs.
    """
    samba.from_torch_model_(model)
    optimizer = _make_optimizer(case, model)
    names = case.input_names

    def tensors(batch: tuple[torch.Tensor, ...]) -> list[samba.SambaTensor]:
        return [samba.from_torch_tensor(t, name=n) for t, n in zip(batch, names, strict=True)]

    traced = tensors(to_torch(case.batches()[0]))
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "output_folder": folder,
            "pef_name": case.family,
            "optim_level": case.optim_level,
            "data_parallel": data_parallel,
        }
        pef = samba.session.compile(model, traced, optimizer, name=case.family, config_dict=config)
        outputs = utils.trace_graph(model, traced, optimizer, pef=pef)
    return tensors, outputs[:1]  # the other contenders leave the logits where they are, too


def prepare(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    tensors, loss_only = put_on_device(case, model)
    run, to_host = samba.session.run, samba.to_torch

    def step(batch: tuple[torch.Tensor, ...], hyper: Mapping[str, float] | None = None) -> float:
        return to_host(run(tensors(batch), loss_only, hyper)[0]).item()

    return to_torch, step
