"""Host models and their optimizers, against regions of a program: who is stored where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pef_schema.program import Program, Role
from samba.compiler.optimizer import describe_optimizers
from samba.tracer.traced import Traced

TORCH_STATES = {"momentum": "momentum_buffer"}
"""Optimizer state names where torch's differ from the device's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTensor:
    """A parameter or buffer of the model and its region."""

    path: str
    role: Role
    region: int
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """Optimizer state of one parameter and its regions.

    ``states`` pairs torch's state name with a region; ``step`` is the region of the
    optimizer's step count, -1 if it has none.
    """

    optimizer: torch.optim.Optimizer
    parameter: torch.Tensor
    states: tuple[tuple[str, int], ...]
    step: int


def model_tensors(model: torch.nn.Module, traced: Traced, program: Program) -> Iterator[HostTensor]:
    """Parameters and buffers of a model with the regions that mirror them.

    Args:
        model: The traced model, or another of the same structure.
        traced: The trace that was loaded.
        program: The program on the device.

    Yields:
        One entry per parameter and buffer that the graph has.
    """
    values = program.graphs[0].values
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for source in traced.sources:
        table = {Role.WEIGHT: parameters, Role.BUFFER: buffers}.get(source.role)
        if table is not None and source.path in table:
            yield HostTensor(
                path=source.path,
                role=source.role,
                region=values[source.value].region,
                tensor=table[source.path],
            )


def optimizer_states(
    optimizers: Sequence[torch.optim.Optimizer], traced: Traced, program: Program
) -> Iterator[HostState]:
    """Optimizer states with the regions that mirror them.

    Args:
        optimizers: The optimizers in the order they were compiled.
        traced: The trace, which knows each parameter's region.
        program: The program on the device.

    Yields:
        One entry per parameter that the device updates.
    """
    values = program.graphs[0].values
    region_of = {
        id(s.tensor): values[s.value].region for s in traced.sources if s.role is Role.WEIGHT
    }
    for group, entry in zip(describe_optimizers(optimizers), program.optimizers, strict=False):
        by_weight = {p.weight: p for p in entry.params}
        names = [TORCH_STATES.get(s, s) for s in group.states]
        for parameter in group.parameters:
            found = by_weight.get(region_of.get(id(parameter), -1))
            if found is not None:
                yield HostState(
                    optimizer=optimizers[group.owner],
                    parameter=parameter,
                    states=tuple(zip(names, found.states, strict=True)),
                    step=entry.step,
                )
