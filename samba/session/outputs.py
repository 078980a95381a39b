"""The outputs of a run: copies that a call asks for, and gradients that a script gives for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulator.device import Device
from emulator.device_memory import DEFINED_AT_FIRST
from emulator.errors import NotWritten
from emulator.plans.plan import Plan
from pef_schema.program import Graph, Output, Program, Role
from samba.errors import ArgumentError, NoGradient, UnknownTensor
from samba.sambatensor import SambaTensor
from samba.session.given_values import fitting
from samba.session.request import Fetches, listed
from samba.support.deviations import Deviations
from samba.tensor.views import read_as_numpy, view_as_torch
from samba.tracer.traced import FROM_DTYPE

if TYPE_CHECKING:
    from samba.distributed.replica_runs import PreparedRun


def output_handles(graph: Graph) -> tuple[SambaTensor, ...]:
    """Handles of a graph's outputs: tensors without values, by which a script asks for them.

    Args:
        graph: The graph.
    """
    values = graph.values
    return tuple(
        SambaTensor(
            shape=values[o.value].shape, dtype=FROM_DTYPE[values[o.value].dtype], name=o.name
        )
        for o in graph.outputs
    )


def copier(device: Device) -> Callable[[Any], torch.Tensor]:
    """How buffers of a device are copied to the host.

    Args:
        device: The device.

    Returns:
        A function of a buffer that gives a tensor with memory of its own.
    """
    chips = device.placement.chips
    if chips.processes is None:
        # Always a copy: a script may write to it, and the device may reuse the buffer.
        return lambda buffer: view_as_torch(np.array(buffer))
    return lambda buffer: view_as_torch(chips.whole(buffer, "an output of session.run"))


def resolve_outputs(device: Device, outputs: Any) -> Fetches:
    """Find the regions of outputs.

    Args:
        device: The device that knows them.
        outputs: Tensors or their names, in a sequence or alone, as the script passed them.

    Returns:
        The region of each with its name.

    Raises:
        ArgumentError: If one is not a tensor of the model.
        UnknownTensor: If the device has none of that name.
    """
    if outputs is None:
        return ()
    if isinstance(outputs, (torch.Tensor, str)):
        outputs = (outputs,)
    outputs = listed(outputs, "session.run(output_tensors=...)")
    return tuple([_resolve_output(device, i, output) for i, output in enumerate(outputs)])


def _resolve_output(device: Device, position: int, output: Any) -> tuple[int, str]:
    name = output if isinstance(output, str) else getattr(output, "sn_name", None)
    where = f"session.run(output_tensors[{position}])"
    if not isinstance(name, str):
        raise ArgumentError(
            where=where,
            found=type(output).__name__,
            wanted="a SambaTensor of the traced model, such as those in model.output_tensors",
        )
    if not name or not device.knows(name):
        raise UnknownTensor(operation=where, name=name)
    return device.region_of(name), name


def require_written(
    device: Device, fetches: Fetches, plan: Plan | PreparedRun | None, deviations: Deviations
) -> None:
    """Make sure before a run that everything asked for can be fetched after it.

    An output that no run has computed yet is zeros, because ``run`` returns every output
    whatever it ran; other memory without data is an error.

    Args:
        device: The device.
        fetches: What is asked for.
        plan: What is about to run; None for nothing.
        deviations: What has been told.

    Raises:
        NotWritten: If something has no data.
    """
    writes, drops = ((), ()) if plan is None else (plan.writes, plan.drops)
    missing: dict[Role, list[str]] = {}
    for region, name in fetches:
        role = device.program.regions[region].role
        has_data = device.pool.buffers[region] is not None and region not in drops
        if has_data or region in writes or role in DEFINED_AT_FIRST:
            continue
        if role is Role.OUTPUT:
            deviations.tell(
                "zero-output", f"output {name} is zeros: no FWD section has computed it yet"
            )
            device.zero(region)
        else:
            missing.setdefault(role, []).append(name)
    for role, names in missing.items():
        raise NotWritten(names=names, role=role.name.lower())


Seeds = Sequence[tuple[int, np.ndarray, str]]
"""Gradients of outputs: regions, values, and names for errors."""


def seeds_of(
    outputs: Sequence[Output], grads: Any, program: Program, deviations: Deviations
) -> Seeds:
    """Gradients that a script has given for outputs, ready for their regions.

    Args:
        outputs: The outputs of a graph.
        grads: What ``session.run(grad_of_outputs=...)`` was given.
        program: The program that they are of.
        deviations: What has been told of casts.

    Returns:
        Regions, values, and names for errors.

    Raises:
        ArgumentError: If they are not tensors, or more than there are outputs.
        NoGradient: If an output has no gradient.
    """
    where = "session.run(grad_of_outputs=...)"
    if isinstance(grads, torch.Tensor):
        grads = (grads,)
    grads = listed(grads, where)
    if len(grads) > len(outputs):
        raise ArgumentError(
            where=where,
            found=f"{len(grads)} gradients",
            wanted=f"at most one for each of the {len(outputs)} outputs",
            hint="Give them in the order of the outputs, None for those without one.",
        )
    seeds = []
    for output, grad in zip(outputs, grads, strict=False):
        if grad is None:
            continue
        if not isinstance(grad, torch.Tensor):
            raise ArgumentError(where=where, found=type(grad).__name__, wanted="tensors or None")
        if output.grad_region < 0:
            raise NoGradient(operation=where, name=output.name)
        name = f"{output.name}__grad"
        region = program.regions[output.grad_region]
        grad = fitting(grad, region, name=name, deviations=deviations)
        seeds.append((output.grad_region, read_as_numpy(grad, name), name))
    return seeds
