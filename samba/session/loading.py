"""Load a PEF for a model: what ``trace_graph`` does, and the transfers that follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulator.device import Device
from pef_schema import first_difference, read_pef
from pef_schema.errors import SambaError
from pef_schema.program import Program, Role
from samba.compiler.arithmetic import check_arithmetic, compiled_arithmetic, wanted_arithmetic
from samba.compiler.optimizer_groups import as_optimizers
from samba.compiler.precision import apply_arithmetic
from samba.distributed.replicas import Replicas, replicas_of
from samba.errors import ArgumentError
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.compiling import loss_index_tuple
from samba.session.host_tensors import HostState, HostTensor, model_tensors, optimizer_states
from samba.session.loaded_tensors import LoadedTensors
from samba.session.matching import check_losses, check_optimizers, tell_rates
from samba.session.running import Runner
from samba.session.settings import parsed_config
from samba.support.progress import stages
from samba.tensor.labels import mark_fast_access
from samba.tensor.views import view_as_numpy, view_as_torch
from samba.tracer.convert import rate_argins
from samba.tracer.inputs import NamedInput, TraceInputs, collect_inputs
from samba.tracer.trace_cache import trace_again
from samba.tracer.traced import FROM_DTYPE, Source, Traced


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
            "Compile again, or run the model, input shapes (batch size: -b) and mode "
            "(train or inference) that were compiled."
        )


class Loaded(ABC):
    """A program on the device together with the host models it mirrors.

    Args:
        program: The program.
        given: The inputs of each of its graphs, as the host was traced with them.
    """

    outputs: tuple[SambaTensor, ...]

    def __init__(self, program: Program, given: Sequence[Sequence[NamedInput]]) -> None:
        self.program = program
        with PROFILER.event("SAMBA_INIT_RUNTIME"):
            self.device = Device(program)
        self.memory = LoadedTensors(self.device, self)
        self._runners = {
            graph.name: Runner(self.device, inputs, number)
            for number, (graph, inputs) in enumerate(zip(program.graphs, given, strict=True))
        }
        runners = list(self._runners.values())
        self.only = runners[0] if len(runners) == 1 else None
        """What runs the only graph; None where there are several."""
        for graph in program.graphs:
            mark_fast_access(graph.values[v].name for v in graph.inputs)
            mark_fast_access(f"{output.name}__grad" for output in graph.outputs)
        self.join(Replicas(self.device))

    def join(self, replicas: Replicas) -> None:
        """Run with others from now on, and set tensors together with them."""
        self.replicas = self.memory.replicas = replicas
        for runner in self._runners.values():
            runner.replicas = replicas

    def runner(self, graph_name: str | None = None) -> Runner:
        """What runs a graph.

        Args:
            graph_name: Its name; None for the only one.

        Raises:
            ArgumentError: There is no graph of that name, or there are several and none is named.
        """
        found = self.only if graph_name is None else self._runners.get(graph_name)
        if found is None:
            raise ArgumentError(
                where="session.run(graph_name=...)",
                found="none" if graph_name is None else repr(graph_name),
                wanted=" or ".join(map(repr, self._runners)),
                hint="The .pef.log beside the PEF lists its graphs.",
            )
        return found

    @abstractmethod
    def tensors_by_name(self) -> dict[str, SambaTensor]:
        """Traced host tensors by name: inputs, parameters, buffers and output handles."""

    @abstractmethod
    def model_tensors(self, model: torch.nn.Module, operation: str) -> list[HostTensor]:
        """Parameters and buffers of a traced model, or of one like it, with their regions."""

    @abstractmethod
    def all_tensors(self, operation: str) -> list[HostTensor]:
        """Parameters and buffers of everything that was traced, with their regions."""

    @abstractmethod
    def to_device(self, forgotten: frozenset[str] = frozenset()) -> None:
        """Copy weights, buffers, inputs and optimizer state to the device.

        Args:
            forgotten: Names of inputs to leave out.
        """

    def _inputs_to_device(
        self, graph: int, sources: Sequence[Source], forgotten: Collection[str]
    ) -> None:
        values = self.program.graphs[graph].values
        for source in sources:
            if source.role is not Role.INPUT or source.tensor is None or source.name in forgotten:
                continue
            if getattr(source.tensor, "has_data", True):
                region = values[source.value].region
                self.device.write(region, view_as_numpy(source.tensor), name=source.name)

    def to_rdu(
        self,
        model: torch.nn.Module,
        optims: Any,
        *,
        buffers_only: bool = False,
        operation: str = "to_rdu()",
    ) -> None:
        """Copy host values to the device; nothing changes there if it raises."""
        tensors = self.model_tensors(model, operation)
        states = optimizer_states(as_optimizers(optims), tensors, self.program, operation=operation)
        wanted = [t for t in tensors if not buffers_only or t.role is Role.BUFFER]
        self.write_tensors(wanted, states)

    def write_tensors(
        self, tensors: Sequence[HostTensor], states: Sequence[HostState] = ()
    ) -> None:
        """Copy tensors and optimizer state to the device; nothing changes there if it raises."""
        regions = [tensor.region for tensor in tensors] + _regions(states)
        with (
            self.device.unchanged_on_error(),
            self.replicas.same_values(regions),
            PROFILER.event("PyRT_SET_TENSORS"),
        ):
            for entry in tensors:
                values = view_as_numpy(_values(entry.tensor))
                self.device.write(entry.region, values, name=entry.path)
            for entry in states:
                self._state_to_rdu(entry)

    def optimizers_to_rdu(self, optims: Any, *, operation: str) -> None:
        """Copy optimizer state alone to the device; nothing changes there if it raises."""
        self.write_tensors((), self._states(optims, operation))

    def optimizers_to_cpu(self, optims: Any, *, operation: str) -> None:
        """Copy optimizer state alone to the host."""
        for entry in self._states(optims, operation):
            self._state_to_cpu(entry)

    def _states(self, optims: Any, operation: str) -> list[HostState]:
        tensors = self.all_tensors(operation)
        return optimizer_states(as_optimizers(optims), tensors, self.program, operation=operation)

    def _state_to_rdu(self, entry: HostState) -> None:
        state = entry.optimizer.state.get(entry.parameter, {})
        for name, region in entry.states:
            value = state.get(name)
            if isinstance(value, torch.Tensor):
                dtype = FROM_DTYPE[self.program.regions[region].dtype]
                values = view_as_numpy(value.to(dtype))
                self.device.write(region, values, name=f"{name} of the optimizer")
            elif self.device.pool.buffers[region] is not None:
                self.device.zero(region)
        if entry.step >= 0:
            self.device.write(entry.step, np.array(_steps(entry, state), np.float32))

    def to_cpu(
        self,
        model: torch.nn.Module,
        optims: Any,
        *,
        buffers_only: bool = False,
        operation: str = "to_cpu()",
    ) -> None:
        """Copy device values to the host, into the host's own memory."""
        tensors = self.model_tensors(model, operation)
        states = optimizer_states(as_optimizers(optims), tensors, self.program, operation=operation)
        wanted = [t for t in tensors if not buffers_only or t.role is Role.BUFFER]
        with PROFILER.event("PyRT_GET_TENSORS"):
            values = [self._read(entry.region) for entry in wanted]
        with torch.no_grad():
            for entry, value in zip(wanted, values, strict=True):
                _overwrite(entry.tensor, value)
            for entry in states:
                self._state_to_cpu(entry)

    def _state_to_cpu(self, entry: HostState) -> None:
        if all(self.device.pool.buffers[r] is None for _, r in entry.states):
            return  # it has taken no step
        state = entry.optimizer.state[entry.parameter]
        for name, region in entry.states:
            state[name] = self._read(region)
        if entry.counts:
            state["step"] = self._read(entry.step)

    def _read(self, region: int) -> torch.Tensor:
        return view_as_torch(self.device.read(region))


class LoadedModel(Loaded):
    """A program of one graph, loaded for one model.

    Args:
        model: The model.
        given: The inputs it was traced with.
        traced: Its trace.
        optimizers: Its optimizers.
        program: The program from the PEF.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        given: TraceInputs,
        traced: Traced,
        optimizers: tuple[torch.optim.Optimizer, ...],
        program: Program,
    ) -> None:
        super().__init__(program, [given.tensors])
        self.model, self.traced, self.optimizers = model, traced, optimizers
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
        return host_tensors(self.traced.sources) | {o.sn_name: o for o in self.outputs}

    def model_tensors(self, model: torch.nn.Module, operation: str) -> list[HostTensor]:
        """Parameters and buffers of the model, or of one like it, with their regions."""
        return model_tensors(model, self.traced, self.program, operation=operation)

    def all_tensors(self, operation: str) -> list[HostTensor]:
        """Parameters and buffers of the model, with their regions."""
        return self.model_tensors(self.model, operation)

    def to_device(self, forgotten: frozenset[str] = frozenset()) -> None:
        """Copy weights, buffers, inputs and optimizer state to the device.

        Args:
            forgotten: Names of inputs to leave out.
        """
        self.to_rdu(self.model, self.optimizers, operation="to_device()")
        self._inputs_to_device(0, self.traced.sources, forgotten)


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


def _regions(states: Sequence[HostState]) -> list[int]:
    """Regions that hold the state of optimizers."""
    return [
        region
        for entry in states
        for region in (*(r for _, r in entry.states), entry.step)
        if region >= 0
    ]


def _values(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, SambaTensor) and not tensor.has_data:
        return tensor.torch_tensor()
    return tensor


def _steps(entry: HostState, state: Mapping[str, Any]) -> float:
    """Steps that torch's state stands for; where it keeps no count, whether there was any."""
    if entry.counts:
        return float(state.get("step", 0.0))
    return float(any(isinstance(state.get(name), torch.Tensor) for name, _ in entry.states))


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
    config: Mapping[str, Any] | None,
    data_parallel_mode: str = "normal",
    distlearn_config: Any = None,
) -> Loaded:
    """Read a PEF, trace the model again if it may have changed, and check that the two agree.

    Args:
        model, inputs, optimizers: As in ``utils.trace_graph``.
        pef: Path of the PEF.
        loss_indices: The compiled losses, None to leave them unchecked.
        config: ``config_dict`` of the application; the last parsed command line if None.
        data_parallel_mode, distlearn_config: As in ``utils.trace_graph``.

    Returns:
        The loaded program; nothing has been transferred yet.

    Raises:
        ArgumentError: If no PEF is named, or the losses are not the compiled ones.
        PefError: If the file is not a whole PEF of a known version.
        ArithmeticMismatch: If the options ask for another arithmetic than the compiled one.
        GraphMismatch: If the model's graph differs from the compiled one.
        MissingOptimizer, OptimizerMismatch: If optimizers are given that the PEF does not have.
        Disagreement: If other replicas load something else.
    """
    if not pef:
        raise ArgumentError(
            where="utils.trace_graph(pef=...)",
            found="no path",
            wanted="the path of a PEF",
            hint="session.compile(...) writes one and returns its path.",
        )
    with stages(f"load {Path(pef).name}", "reading", "tracing") as stage:
        stage.start("reading")
        with PROFILER.event("SAMBA_SET_PEF"):
            program = read_pef(Path(pef).absolute())
        stage.start("tracing")
        graph = program.graphs[0]
        given = collect_inputs(model, inputs)
        traced = trace_again(
            model, given, inference=program.inference, root=graph.name, rates=rate_argins(graph)
        )
    found = as_optimizers(optimizers)
    if program.inference and parsed_config(config).get("inference"):
        found = ()  # scripts build their optimizer whatever the mode, and both sides agree on it
    arithmetic = compiled_arithmetic(dict(program.metadata))
    check_arithmetic(wanted_arithmetic(parsed_config(config)), arithmetic, pef=pef)
    traced = apply_arithmetic(traced, arithmetic)
    difference = first_difference(graph, traced.graph())
    if difference is not None:
        raise GraphMismatch(pef=pef, difference=difference)
    check_losses(loss_index_tuple(loss_indices), program, pef=pef)
    check_optimizers(found, traced, program, pef=pef)
    tell_rates(traced, program)
    loaded = LoadedModel(model, given, traced, found, program)
    loaded.join(replicas_of(loaded.device, pef, data_parallel_mode, distlearn_config))
    return loaded
