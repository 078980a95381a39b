"""This project, used as a SambaFlow script uses it, and what the harness looks at inside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

import samba
from bench.case import Case, optimizer_of
from bench.nets import Holding
from bench.peers import Prepared
from bench.peers.torch_step import to_torch
from samba import utils

if TYPE_CHECKING:
    from pef_schema.program import Program
    from samba.session.loaded import Loaded

Inputs = Callable[[tuple[torch.Tensor, ...]], list[samba.SambaTensor]]
"""Makes the inputs of a step."""


def _put_on_device(
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
    optimizer = optimizer_of(samba.optim, case.optimizer, model)
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


def ours(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    tensors, loss_only = _put_on_device(case, model)
    run, to_host = samba.session.run, samba.to_torch

    def step(batch: tuple[torch.Tensor, ...], hyper: Mapping[str, float] | None = None) -> float:
        return to_host(run(tensors(batch), loss_only, hyper)[0]).item()

    return to_torch, step


def replica(case: Case, model: nn.Module) -> Prepared:
    """The same as a script with ``--data-parallel`` has it; the step may be told its mode."""
    tensors, loss_only = _put_on_device(case, model, data_parallel=True)
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


def moving(size: int) -> dict[str, Callable[[], object]]:
    """Load a model that only holds one weight.

    Args:
        size: Elements of the weight.

    Returns:
        ``to_device`` and ``to_host``, which move it.
    """
    model = Holding(size)
    samba.from_torch_model_(model)
    given = samba.from_torch_tensor(torch.zeros(1), name="given")
    with tempfile.TemporaryDirectory() as folder:
        config = {"output_folder": folder, "pef_name": "holding", "inference": True}
        pef = samba.session.compile(model, (given,), None, name="holding", config_dict=config)
        utils.trace_graph(model, (given,), None, pef=pef)
    session = samba.session
    return {
        "to_device": lambda: session.to_rdu(model),
        "to_host": lambda: session.to_cpu(model, inplace=True),
    }


def loaded() -> Loaded:
    """What the global session has loaded; its name depends on the revision that is measured."""
    session = samba.session
    need = getattr(session, "need_loaded", None) or session._need  # pyright: ignore[reportAttributeAccessIssue]  # of older revisions
    return need("bench")


def all_steps(program: Program) -> tuple[tuple[int, int], ...]:
    """The section and step of everything that a full run does, in order.

    The emulator has such a function, but not of the same name in every revision that is measured.
    """
    return tuple(
        (call.section, k)
        for call in program.schedules[0].calls
        for k in range(len(program.sections[call.section].steps))
    )
