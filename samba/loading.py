"""Compile a model into a PEF, and load a PEF for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulator.device import Device
from pef_schema import first_difference, read_pef, write_pef
from pef_schema.atomic import write_atomically
from pef_schema.errors import PefUnwritable, SambaError
from pef_schema.program import Program, Role
from samba.compiler import CompileOptions, build_program
from samba.compiler.optimizer import as_optimizers
from samba.compiler.report import pef_log
from samba.hostmodel import model_tensors, optimizer_states
from samba.runner import Runner
from samba.runtime import Memory
from samba.sambatensor import SambaTensor
from samba.settings import CompileSettings
from samba.tracer import trace_model
from samba.tracer.traced import FROM_DTYPE, Traced
from samba.transfer import view_as_numpy, view_as_torch


class GraphMismatch(SambaError):
    """The model traces to another graph than the PEF was compiled from.

    Attributes:
        pef: Path of the PEF.
        difference: What differs first.
    """

    def __init__(self, *, pef: str, difference: object) -> None:
        self.pef, self.difference = pef, difference
        super().__init__(
            f"{pef}: the model is not the one this PEF was compiled from.\n{difference}\n"
            "Compile again, or run the model, input shapes and mode (train or inference) "
            "that were compiled."
        )


class MissingOptimizer(SambaError):
    """``trace_graph`` was given an optimizer that the PEF does not have."""

    def __init__(self, *, pef: str, given: int, compiled: int) -> None:
        self.pef, self.given, self.compiled = pef, given, compiled
        super().__init__(
            f"{pef}: trace_graph was given {given} optimizer parameter group(s), the PEF was "
            f"compiled with {compiled}. Compile with the same optimizers: "
            "samba.session.compile(model, inputs, optimizer)."
        )


def compile_pef(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    *,
    name: str,
    settings: CompileSettings,
    loss_indices: Sequence[Any] | None,
    metadata: Mapping[str, Any] | None,
) -> Path:
    """Trace, compile and write a PEF with its log.

    Args:
        model, inputs, optimizers: As in ``session.compile``.
        name: Name of the program.
        settings: Output path and options.
        loss_indices: Outputs that are losses.
        metadata: Text to store.

    Returns:
        Absolute path of the PEF.
    """
    found = as_optimizers(optimizers)
    traced = trace_model(model, inputs, inference=settings.inference)
    program = build_program(
        traced,
        found,
        CompileOptions(
            name=name,
            inference=settings.inference,
            mapping=settings.mapping,
            optim_level=settings.optim_level,
            loss_indices=loss_index_tuple(loss_indices),
            accumulate=settings.accumulate,
            metadata=tuple((str(k), str(v)) for k, v in (metadata or {}).items()),
        ),
    )
    path = settings.pef.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PefUnwritable(f"cannot make the folder {path.parent}: {error}", path=path) from error
    write_pef(path, program)
    write_atomically(f"{path}.log", [pef_log(program).encode()])
    return path


def loss_index_tuple(indices: Sequence[Any] | None) -> tuple[int, ...] | None:
    """``loss_indices`` as numbers; entries may be numbers or tuples of one number."""
    if indices is None:
        return None
    return tuple(int(i[0]) if isinstance(i, (tuple, list)) else int(i) for i in indices)


class Loaded:
    """A program on the device together with the host model it mirrors.

    Args:
        model: The model.
        traced: Its trace.
        optimizers: Its optimizers.
        program: The program from the PEF.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        traced: Traced,
        optimizers: tuple[torch.optim.Optimizer, ...],
        program: Program,
    ) -> None:
        self.model, self.traced, self.optimizers = model, traced, optimizers
        self.program = program
        self.device = Device(program)
        self.memory = Memory(self.device)
        self.runner = Runner(self.device)
        values = program.graphs[0].values
        self.outputs = tuple(
            SambaTensor(
                shape=values[o.value].shape,
                dtype=FROM_DTYPE[values[o.value].dtype],
                name=o.name,
            )
            for o in program.graphs[0].outputs
        )

    def tensors_by_name(self) -> dict[str, SambaTensor]:
        """Traced host tensors by name: inputs, parameters, buffers and output handles."""
        found: dict[str, SambaTensor] = {}
        for source in self.traced.sources:
            if source.tensor is not None and source.role is not Role.CONSTANT:
                tensor = source.tensor
                if not isinstance(tensor, SambaTensor):
                    tensor = SambaTensor(tensor, name=source.name, region_name=source.region_name)
                found[source.name] = tensor
        found.update({o.sn_name: o for o in self.outputs})
        return found

    def to_device(self) -> None:
        """Copy weights, buffers, inputs and optimizer state to the device."""
        self.to_rdu(self.model, self.optimizers)
        values = self.program.graphs[0].values
        for source in self.traced.sources:
            if source.role is not Role.INPUT or source.tensor is None:
                continue
            if getattr(source.tensor, "has_data", True):
                region = values[source.value].region
                self.device.write(region, view_as_numpy(source.tensor), name=source.name)

    def to_rdu(self, model: torch.nn.Module, optims: Any, *, buffers_only: bool = False) -> None:
        """Copy host values to the device."""
        for entry in model_tensors(model, self.traced, self.program):
            if buffers_only and entry.role is not Role.BUFFER:
                continue
            tensor = entry.tensor
            if isinstance(tensor, SambaTensor) and not tensor.has_data:
                tensor = tensor.torch_tensor()
            self.device.write(entry.region, view_as_numpy(tensor), name=entry.path)
        for entry in optimizer_states(as_optimizers(optims), self.traced, self.program):
            state = entry.optimizer.state.get(entry.parameter, {})
            for name, region in entry.states:
                if isinstance(state.get(name), torch.Tensor):
                    self.device.write(region, view_as_numpy(state[name].to(entry.parameter.dtype)))
            if entry.step >= 0 and "step" in state:
                self.device.write(entry.step, np.array(float(state["step"]), np.float32))

    def to_cpu(self, model: torch.nn.Module, optims: Any, *, buffers_only: bool = False) -> None:
        """Copy device values to the host, into the host's own memory."""
        with torch.no_grad():
            for entry in model_tensors(model, self.traced, self.program):
                if not buffers_only or entry.role is Role.BUFFER:
                    _overwrite(entry.tensor, view_as_torch(self.device.read(entry.region)))
            for entry in optimizer_states(as_optimizers(optims), self.traced, self.program):
                if all(self.device.pool.buffers[r] is None for _, r in entry.states):
                    continue
                state = entry.optimizer.state[entry.parameter]
                for name, region in entry.states:
                    state[name] = view_as_torch(self.device.read(region))
                if entry.step >= 0:
                    state["step"] = view_as_torch(self.device.read(entry.step))


def _overwrite(target: torch.Tensor, values: torch.Tensor) -> None:
    if isinstance(target, SambaTensor) and not target.has_data:
        target.data = values
    else:
        target.data.copy_(values)


def load_pef(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    *,
    pef: str,
    loss_indices: Sequence[Any] | None,
) -> Loaded:
    """Read a PEF, trace the model again and check that the two agree.

    Args:
        model, inputs, optimizers: As in ``utils.trace_graph``.
        pef: Path of the PEF.
        loss_indices: Accepted for symmetry with compile; the compiled ones hold.

    Returns:
        The loaded program; nothing has been transferred yet.

    Raises:
        PefError: If the file is not a whole PEF of a known version.
        GraphMismatch: If the model's graph differs from the compiled one.
        MissingOptimizer: If optimizers are given that the PEF does not have.
    """
    program = read_pef(pef)
    found = as_optimizers(optimizers)
    traced = trace_model(model, inputs, inference=program.inference, root=program.graphs[0].name)
    difference = first_difference(program.graphs[0], traced.graph())
    if difference is not None:
        raise GraphMismatch(pef=str(pef), difference=difference)
    if program.inference:
        found = ()
    groups = sum(len(o.param_groups) for o in found)
    if groups and groups != len(program.optimizers):
        raise MissingOptimizer(pef=str(pef), given=groups, compiled=len(program.optimizers))
    return Loaded(model, traced, found, program)


