"""Parameters, buffers and optimizer states on the host, with their regions in a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pef_schema.optimizer_rules import OPTIMIZER_RULES, idle_states
from pef_schema.program import Program, Role
from samba.compiler.optimizers import GroupSpec, describe_optimizers
from samba.errors import ArgumentError
from samba.sambatensor import SambaTensor
from samba.tracer.traced import Source, Traced


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

    ``states`` pairs torch's state name with a region, of which ``idle`` are not used while the
    momentum is 0. ``step`` is the region of the step count, -1 for none; ``counts`` says whether
    torch keeps one too.
    """

    optimizer: torch.optim.Optimizer
    parameter: torch.Tensor
    states: tuple[tuple[str, int], ...]
    idle: frozenset[int]
    step: int
    counts: bool


def host_tensors(sources: Sequence[Source]) -> dict[str, SambaTensor]:
    """Traced host tensors by name: inputs, parameters and buffers."""
    found: dict[str, SambaTensor] = {}
    for source in sources:
        if source.tensor is not None and source.role is not Role.CONSTANT:
            tensor = source.tensor
            if not isinstance(tensor, SambaTensor):
                tensor = SambaTensor(tensor, name=source.name, region_name=source.region_name)
            found[source.name] = tensor
    return found


def model_tensors(
    model: torch.nn.Module,
    traced: Traced,
    program: Program,
    *,
    operation: str,
    places: Mapping[str, int] | None = None,
) -> list[HostTensor]:
    """Parameters and buffers of a model with the regions that mirror them.

    Args:
        model: The traced model, or another of the same structure.
        traced: The trace that was loaded.
        program: The program on the device.
        operation: Who asks, for errors.
        places: Regions by tensor name, for a program of several graphs; what is not there is left
            out.

    Returns:
        One entry per parameter and buffer that the graph has.

    Raises:
        ArgumentError: If the model lacks one of them, or has it in another shape or dtype.
    """
    if places is None:
        values = program.graphs[0].values
        places = {s.name: values[s.value].region for s in traced.sources}
    tables: dict[Role, dict[str, torch.Tensor]] = {
        Role.WEIGHT: dict(model.named_parameters(remove_duplicate=False)),
        Role.BUFFER: dict(model.named_buffers(remove_duplicate=False)),
    }
    found = []
    for source in traced.sources:
        if source.role not in tables or source.name not in places:
            continue
        tensor = tables[source.role].get(source.path)
        wanted = source.tensor
        if tensor is None or (
            wanted is not None and (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype)
        ):
            raise ArgumentError(
                where=f"session.{operation}, {source.path} of the model",
                found="none" if tensor is None else _form(tensor),
                wanted="one" if wanted is None else _form(wanted),
                hint="Give the model that was traced, or one of the same structure.",
            )
        found.append(
            HostTensor(
                path=source.path,
                role=source.role,
                region=places[source.name],
                tensor=tensor,
            )
        )
    return found


def optimizer_states(
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Sequence[HostTensor],
    program: Program,
    *,
    operation: str,
) -> list[HostState]:
    """Optimizer states with the regions that mirror them.

    Args:
        optimizers: Some or all of the program's optimizers, over the model's parameters.
        tensors: Parameters of the model with their regions.
        program: The program on the device.
        operation: Who asks, for errors.

    Returns:
        One entry per parameter that the device updates.

    Raises:
        ArgumentError: If an optimizer's update rule is not the one that the device uses for
            its parameters, or none of its parameters is updated by the device.
    """
    region_of = {id(t.tensor): t.region for t in tensors}
    on_device = {p.weight: (entry, p) for entry in program.optimizers for p in entry.params}
    idle = {entry.name: idle_states(entry) for entry in program.optimizers}
    found: list[HostState] = []
    for group in describe_optimizers(optimizers):
        names = [state.host_name or state.name for state in group.states]
        regions = [region_of.get(id(parameter), -1) for parameter in group.parameters]
        if regions and max(regions) < 0:
            raise _mismatch(operation, group, "parameters of another model")
        for parameter, region in zip(group.parameters, regions, strict=True):
            if region not in on_device:
                continue
            entry, state = on_device[region]
            if entry.kind is not group.kind or len(state.states) != len(names):
                raise _mismatch(operation, group, f"{entry.kind.name} on the device")
            found.append(
                HostState(
                    optimizer=optimizers[group.owner],
                    parameter=parameter,
                    states=tuple(zip(names, state.states, strict=True)),
                    idle=idle[entry.name],
                    step=entry.step,
                    counts=OPTIMIZER_RULES[entry.kind].counts,
                )
            )
    return found


def _mismatch(operation: str, group: GroupSpec, found: str) -> ArgumentError:
    return ArgumentError(
        where=f"session.{operation}, optimizer {group.name}",
        found=found,
        wanted=f"{group.kind.name} over parameters of the traced model",
        hint="Give the optimizers that were given to trace_graph.",
    )


def _form(tensor: torch.Tensor) -> str:
    return f"shape {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
