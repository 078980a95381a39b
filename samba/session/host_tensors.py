"""Parameters, buffers and optimizer states on the host, with their regions in a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulator.handler_errors import raise_error_of_handler
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.optimizer_states import idle_states
from pef_schema.program import Program, Role
from samba.compiler.optimizers import GroupSpec, describe_optimizers
from samba.errors import ArgumentError, called, described
from samba.sambatensor import SambaTensor
from samba.session.given_values import dtype_name
from samba.tensor.host_use import overwrite, replace
from samba.tensor.views import read_as_numpy, readable, view_as_torch
from samba.tracer.traced import FROM_DTYPE, Source, Traced

if TYPE_CHECKING:
    from emulator.device import Device  # loads jax, which a session without a program needs not


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTensor:
    """A parameter or buffer of the model and its region."""

    path: str
    role: Role
    region: int
    tensor: torch.Tensor

    def array(self) -> np.ndarray:
        """Its values; a tensor without values makes them."""
        return read_as_numpy(with_values(self.tensor), self.path)

    def take(self, values: torch.Tensor, *, inplace: bool) -> None:
        """Give the tensor values: in its memory, or in new memory where others keep the old."""
        if isinstance(self.tensor, SambaTensor) and not self.tensor.has_data:
            self.tensor.data = values
        elif inplace:
            overwrite(self.tensor, values)
        else:
            replace(self.tensor, values)


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

    @property
    def regions(self) -> list[int]:
        """Its regions, that of the step count included."""
        return [region for _, region in (*self.states, ("", self.step)) if region >= 0]

    def to_device(self, device: Device) -> None:
        """Copy it to the device; what torch's optimizer does not have starts from the beginning."""
        state = self.optimizer.state.get(self.parameter, {})
        for name, region in self.states:
            value = state.get(name)
            # Adagrad makes its states before the first step, without values for a model without.
            untouched = isinstance(value, torch.Tensor) and value.is_meta and self.counts
            if untouched and not self._steps(state):
                value = None
            if isinstance(value, torch.Tensor):
                dtype = FROM_DTYPE[device.program.regions[region].dtype]
                whose = f"{name} of the optimizer"
                array = read_as_numpy(readable(value, whose).to(dtype), whose)
                device.write(region, array, name=whose)
            elif _is_there(device, region):
                device.reset(region)
        if self.step >= 0:
            device.write(self.step, np.array(self._steps(state), np.float32))

    def read(self, device: Device) -> dict[str, torch.Tensor]:
        """What the device has, by torch's names; nothing if the optimizer has taken no step."""
        if not any(_is_there(device, region) for _, region in self.states):
            return {}
        # torch makes no buffer for a momentum that has always been 0.
        states = [
            (name, region)
            for name, region in self.states
            if region not in self.idle or _is_there(device, region)
        ]
        step = (("step", self.step),) if self.counts else ()
        return {name: view_as_torch(device.read(region)) for name, region in (*states, *step)}

    def take(self, values: Mapping[str, torch.Tensor], *, inplace: bool) -> None:
        """Give torch's optimizer what :meth:`read` has returned."""
        if not values:
            return
        state = self.optimizer.state[self.parameter]
        for name, value in values.items():
            there = state.get(name)
            if inplace and isinstance(there, torch.Tensor):
                there.copy_(value)
            else:
                state[name] = value

    def _steps(self, state: Mapping[str, Any]) -> float:
        """Steps that torch's state stands for; where it keeps no count, whether there was any."""
        if not self.counts:
            return float(any(isinstance(state.get(name), torch.Tensor) for name, _ in self.states))
        step = state.get("step", 0.0)
        try:
            return float(step)
        except Exception as error:  # what a state_dict from elsewhere may hold
            raise_error_of_handler(error)
            raise ArgumentError(
                where="step of the optimizer's state",
                found=described(step),
                wanted="a number of steps",
            ) from None


def _is_there(device: Device, region: int) -> bool:
    """Whether a device has values of a region, or has lost them."""
    return device.pool.buffers[region] is not None or device.is_lost(region)


def with_values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with values: itself, or what its materializer makes."""
    if isinstance(tensor, SambaTensor) and not tensor.has_data:
        return tensor.torch_tensor()
    return tensor


def host_tensors(sources: Sequence[Source]) -> dict[str, SambaTensor]:
    """Traced host tensors by name: inputs, parameters and buffers."""
    by_name: dict[str, SambaTensor] = {}
    for source in sources:
        if source.tensor is not None and source.role is not Role.CONSTANT:
            tensor = source.tensor
            if not isinstance(tensor, SambaTensor):
                tensor = SambaTensor(tensor, name=source.name, region_name=source.region_name)
            by_name[source.name] = tensor
    return by_name


def model_tensors(
    model: torch.nn.Module,
    traced: Traced,
    places: Mapping[str, int],
    *,
    operation: str,
) -> list[HostTensor]:
    """Parameters and buffers of a model with the regions that mirror them.

    Args:
        model: The traced model, or another of the same structure.
        traced: The trace that was loaded.
        places: Regions by tensor name; tensors without one are left out.
        operation: The caller's name, for errors.

    Returns:
        One entry per parameter and buffer that the graph has.

    Raises:
        ArgumentError: If the model lacks one of them, or has it in another shape or dtype.
    """
    tables: dict[Role, dict[str, torch.Tensor]] = {
        Role.WEIGHT: dict(model.named_parameters(remove_duplicate=False)),
        Role.BUFFER: dict(model.named_buffers(remove_duplicate=False)),
    }
    entries = []
    for source in traced.sources:
        if source.role not in tables or source.name not in places:
            continue
        tensor = tables[source.role].get(source.path)
        like = source.tensor
        if tensor is None or (
            like is not None and (tensor.shape, tensor.dtype) != (like.shape, like.dtype)
        ):
            raise ArgumentError(
                where=f"{called(operation)}, {source.path} of the model",
                found="none" if tensor is None else _form(tensor),
                wanted="one" if like is None else _form(like),
                hint="Give the model that was traced, or one of the same structure.",
            )
        entries.append(
            HostTensor(
                path=source.path,
                role=source.role,
                region=places[source.name],
                tensor=tensor,
            )
        )
    return entries


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
        operation: The caller's name, for errors.

    Returns:
        One entry per parameter that the device updates.

    Raises:
        ArgumentError: If an optimizer's update rule is not the one that the device uses for
            its parameters, or none of its parameters is updated by the device.
    """
    region_of = {id(t.tensor): t.region for t in tensors}
    on_device = {p.weight: (entry, p) for entry in program.optimizers for p in entry.params}
    idle = {entry.name: idle_states(entry) for entry in program.optimizers}
    entries: list[HostState] = []
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
            entries.append(
                HostState(
                    optimizer=optimizers[group.owner],
                    parameter=parameter,
                    states=tuple(zip(names, state.states, strict=True)),
                    idle=idle[entry.name],
                    step=entry.step,
                    counts=OPTIMIZER_RULES[entry.kind].counts,
                )
            )
    return entries


def _mismatch(operation: str, group: GroupSpec, found: str) -> ArgumentError:
    return ArgumentError(
        where=f"session.{operation}, optimizer {group.name}",
        found=found,
        wanted=f"{group.kind.name} over parameters of the traced model",
        hint="Give the optimizers that were given to trace_graph.",
    )


def _form(tensor: torch.Tensor) -> str:
    return f"shape {list(tensor.shape)} {dtype_name(tensor.dtype)}"
