"""A program on the device together with the host models that it mirrors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from emulator.device import Device
from emulator.handler_errors import raise_error_of_handler
from emulator.held_signals import HELD
from emulator.mesh.chips import Chips
from pef_schema.program import Program, Role
from samba.compiler.optimizer_groups import as_optimizers
from samba.distributed.replicas import Replicas
from samba.errors import ArgumentError, described, literal
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.computed_indices import checks_by_region, index_checks_of, tell_computed
from samba.session.feeding import Feeder
from samba.session.host_tensors import HostState, HostTensor, optimizer_states
from samba.session.host_writes import HostWrites
from samba.session.joining import joining
from samba.session.known_buffers import KnownBuffers
from samba.session.layout_feeding import feeder_of
from samba.session.loaded_tensors import LoadedTensors
from samba.session.running import Runner
from samba.session.spilling import spill_weights
from samba.session.watched_modes import WatchedModes
from samba.tensor.host_use import overwrite, replace
from samba.tensor.labels import mark_fast_access
from samba.tensor.views import read_as_numpy, readable, view_as_torch
from samba.tracer.inputs import Constant, NamedInput
from samba.tracer.traced import FROM_DTYPE, Source, Traced

__all__ = ["Loaded"]


class Loaded(LoadedTensors, ABC):
    """A program on the device together with the host models it mirrors.

    SambaTensors see its memory as :class:`samba.tensor.device_memory.DeviceTensors`.

    Args:
        program: The program.
        given: The inputs of each of its graphs, as the host was traced with them.
        constants: Arguments by name that are constants of the graphs.
        check_indices: Whether computed indices are looked at in every run, too.
        chips: Where it runs, on one chip if None.

    Raises:
        IndexOutOfRange: If a constant of the program is used as indices that are out of range.
    """

    outputs: tuple[SambaTensor, ...]

    def __init__(
        self,
        program: Program,
        given: Sequence[Sequence[NamedInput]],
        *,
        constants: Sequence[tuple[str, Constant]] = (),
        check_indices: bool = False,
        chips: Chips | None = None,
    ) -> None:
        self.program = program
        checks = [index_checks_of(program, number) for number in range(len(program.graphs))]
        computed = {number: found.computed for number, found in enumerate(checks)}
        if not check_indices:
            tell_computed(program, computed)
        with PROFILER.event("SAMBA_INIT_RUNTIME"):
            device = Device(program, computed if check_indices else None, chips)
        super().__init__(device, Replicas(device))
        self._checks_of_region = checks_by_region(program, checks)
        self._runners = {
            graph.name: Runner(
                device,
                self.replicas,
                feeder_of(program, inputs, number, constants=constants, checks=found.fed),
                number,
            )
            for number, (graph, inputs, found) in enumerate(
                zip(program.graphs, given, checks, strict=True)
            )
        }
        self._every = list(self._runners.values())
        if len(program.graphs) != 1:
            fed = [found.fed for found in checks]
            feeder = Feeder(program, graph_number=None, checks_of_all=fed)
            self._every.append(Runner(device, self.replicas, feeder, None))
        self.writes = HostWrites()
        self._has_spilled = False
        self.only = self._every[-1]
        """Runner where no graph is named: of the only graph, or of all in their order."""
        for graph in program.graphs:
            mark_fast_access(graph.values[v].name for v in graph.inputs)
            mark_fast_access(f"{output.name}__grad" for output in graph.outputs)

    def join(self, replicas: Replicas) -> None:
        """Run with others from now on, and set tensors together with them."""
        self.replicas = replicas
        for runner in self._every:
            runner.replicas = replicas

    def joining(self, *, by_initial_size: bool, throws: bool) -> AbstractContextManager[None]:
        """A context in which the data of some replicas may end before that of others.

        Args:
            by_initial_size, throws: As for :func:`samba.session.joining.joining`.
        """
        return joining(self, by_initial_size=by_initial_size, throws=throws)

    def forget_calls(self) -> None:
        """Let the next run repeat no earlier one: replicas have changed the device between them."""
        for runner in self._every:
            runner.forget_call()

    def watch(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> None:
        """Look after host tensors and modes from now on.

        Args:
            models: The models that were loaded.
            optimizers: Their optimizers.
        """
        self.writes = HostWrites(self, models, optimizers, KnownBuffers(self.traces()))
        for runner in self._every:
            modes = WatchedModes(models[0] if len(models) == 1 else None, self.program)
            runner.watch(self.writes, modes)

    def close(self) -> None:
        """Look after nothing any more: the program leaves the device."""
        self.writes.close()

    def runner(self, graph_name: str | None = None) -> Runner:
        """Runner of a graph.

        Args:
            graph_name: Its name; None for the only one, or for all in their order.

        Raises:
            ArgumentError: There is no graph of that name.
        """
        found = self.only if graph_name is None else self._named(graph_name)
        if found is None:
            raise ArgumentError(
                where="session.run(graph_name=...)",
                found=literal(graph_name),
                wanted=" or ".join(map(repr, self._runners)),
                hint="The .pef.log beside the PEF lists its graphs.",
            )
        return found

    def _named(self, graph_name: Any) -> Runner | None:
        return self._runners.get(graph_name) if isinstance(graph_name, str) else None

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Copy host values to the device.

        Args:
            name: Name of a tensor of the program.
            tensor: Its values.

        Raises:
            IndexOutOfRange: If the program uses them as indices and one is out of range.
        """
        region = self.device.region_of(name)
        tensor = self._fitting(tensor, region, name)
        if self.writes.known:
            self.writes.known.refuse_write(name, tensor)
        for check in self._checks_of_region.get(region, ()):
            check.check(np.ascontiguousarray(read_as_numpy(tensor, name)))
        super().write(name, tensor)
        self.note_written((region,))

    def note_gradients(self, regions: Collection[int], *, stays: bool) -> None:
        """Take note that gradients were set, perhaps of outputs.

        Args:
            regions: Their regions.
            stays: Whether they are meant for all runs that follow.
        """
        for runner in self._runners.values():
            runner.note_gradients(regions, stays=stays)

    def note_written(self, regions: Collection[int] | None = None) -> None:
        """Take note that a script has put values into inputs itself.

        Args:
            regions: Their regions; all if None.
        """
        for runner in self._every:
            runner.note_written(regions)

    @abstractmethod
    def traces(self) -> list[tuple[torch.nn.Module, Traced]]:
        """Its models, each with a trace of it; several times where it was traced several times."""

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

    def spill_weights(self) -> None:
        """Let the host's weights rest in a file, once, now that the device has its own."""
        if self._has_spilled:
            return
        self._has_spilled = True
        with self.turns.held():
            everything = self.all_tensors("to_device()")
            spill_weights([entry.tensor for entry in everything if entry.role is Role.WEIGHT])

    def _inputs_to_device(
        self, graph: int, sources: Sequence[Source], forgotten: Collection[str]
    ) -> None:
        values = self.program.graphs[graph].values
        for source in sources:
            if source.role is not Role.INPUT or source.tensor is None or source.name in forgotten:
                continue
            tensor = source.tensor
            if getattr(tensor, "has_data", True) or getattr(tensor, "materializer_provided", False):
                region = values[source.value].region
                array = read_as_numpy(_values(tensor), source.name)
                self.device.write(region, array, name=source.name)

    def to_rdu(
        self,
        model: torch.nn.Module,
        optims: Any,
        *,
        buffers_only: bool = False,
        operation: str = "to_rdu()",
    ) -> None:
        """Copy host values to the device; nothing changes there if it raises."""
        self.writes.known.refuse_changed(f"session.{operation}")
        tensors = self.model_tensors(model, operation)
        states = self._states_of(tensors, optims, operation)
        wanted = [t for t in tensors if not buffers_only or t.role is Role.BUFFER]
        self.write_tensors(wanted, states)

    def write_tensors(
        self, tensors: Sequence[HostTensor], states: Sequence[HostState] = ()
    ) -> None:
        """Copy tensors and optimizer state to the device; nothing changes there if it raises."""
        regions = [tensor.region for tensor in tensors] + _regions(states)
        # Alone, what a signal cuts short is put back; with others, all of them do the whole.
        whole = nullcontext() if self.replicas.size == 1 else HELD
        with self.turns.held(), self.device.unchanged_on_error() as transaction, whole:
            with self.replicas.same_values(regions), PROFILER.event("PyRT_SET_TENSORS"):
                for entry in tensors:
                    values = read_as_numpy(_values(entry.tensor), entry.path)
                    for check in self._checks_of_region.get(entry.region, ()):
                        check.check(np.ascontiguousarray(values))
                    self.device.write(entry.region, values, name=entry.path)
                for entry in states:
                    self._state_to_rdu(entry)
            with HELD:
                transaction.commit()
                self.writes.copied(tensors)
                self.writes.copied_optimizers([entry.optimizer for entry in states])

    def optimizers_to_rdu(self, optims: Any, *, operation: str = "optimizers_to_rdu()") -> None:
        """Copy optimizer state alone to the device; nothing changes there if it raises."""
        self.write_tensors((), self._states(optims, operation))

    def optimizers_to_cpu(self, optims: Any, *, operation: str = "optimizers_to_cpu()") -> None:
        """Copy optimizer state alone to the host."""
        with self.turns.held():
            self.writes.bring(f"session.{operation}")
            self._take_from_device((), self._states(optims, operation), inplace=False)

    def _states(self, optims: Any, operation: str) -> list[HostState]:
        return self._states_of((), optims, operation)

    def _states_of(
        self, tensors: Sequence[HostTensor], optims: Any, operation: str
    ) -> list[HostState]:
        """States of optimizers over the traced parameters or over those of a model like it."""
        found = as_optimizers(optims)
        if not found:
            return []
        both = [*self.all_tensors(operation), *tensors]
        return optimizer_states(found, both, self.program, operation=operation)

    def host_state(self, region: int) -> torch.Tensor:
        """Values on the host of a region of optimizer state: those before the first step."""
        return view_as_torch(self.device.at_first(region))

    def _state_to_rdu(self, entry: HostState) -> None:
        state = entry.optimizer.state.get(entry.parameter, {})
        for name, region in entry.states:
            value = state.get(name)
            # Adagrad makes its states before the first step, without values for a model without.
            untouched = isinstance(value, torch.Tensor) and value.is_meta and entry.counts
            if untouched and not _steps(entry, state):
                value = None
            if isinstance(value, torch.Tensor):
                dtype = FROM_DTYPE[self.program.regions[region].dtype]
                whose = f"{name} of the optimizer"
                array = read_as_numpy(readable(value, whose).to(dtype), whose)
                self.device.write(region, array, name=whose)
            elif self.device.pool.buffers[region] is not None or self.device.is_lost(region):
                self.device.reset(region)
        if entry.step >= 0:
            self.device.write(entry.step, np.array(_steps(entry, state), np.float32))

    def to_cpu(
        self,
        model: torch.nn.Module,
        optims: Any,
        *,
        buffers_only: bool = False,
        inplace: bool = False,
        operation: str = "to_cpu()",
    ) -> None:
        """Copy device values to the host, into new memory or into that which is there."""
        tensors = self.model_tensors(model, operation)
        states = self._states_of(tensors, optims, operation)
        with self.turns.held():
            self.writes.bring(f"session.{operation}")
            wanted = [t for t in tensors if not buffers_only or t.role is Role.BUFFER]
            self._take_from_device(wanted, states, inplace=inplace)

    def read_tensors(self, tensors: Sequence[HostTensor], inplace: bool = True) -> None:
        """Copy the device's values of some tensors to the host.

        Args:
            tensors: The tensors.
            inplace: Whether into the memory that they have, or into new memory.
        """
        self._take_from_device(tensors, (), inplace=inplace)

    def _take_from_device(
        self, tensors: Sequence[HostTensor], states: Sequence[HostState], *, inplace: bool
    ) -> None:
        """Read everything, then give it to the host: a signal finds all of it there, or nothing."""
        with self.turns.held(), self.replicas.getting_tensors():
            values = [self._read(entry.region) for entry in tensors]
        found = [self._state_values(entry) for entry in states]
        with HELD, torch.no_grad():
            for entry, value in zip(tensors, values, strict=True):
                _take(entry.tensor, value, inplace)
            for entry, of_state in zip(states, found, strict=True):
                self._state_to_cpu(entry, of_state, inplace)
            self.writes.copied(tensors)

    def _state_values(self, entry: HostState) -> dict[str, torch.Tensor]:
        """State by torch's names; nothing if the optimizer has taken no step."""
        device = self.device
        regions = [region for _, region in entry.states]
        if all(device.pool.buffers[r] is None and not device.is_lost(r) for r in regions):
            return {}
        # torch makes no buffer for a momentum that has always been 0.
        states = [
            (name, region)
            for name, region in entry.states
            if region not in entry.idle
            or device.pool.buffers[region] is not None
            or device.is_lost(region)
        ]
        step = (("step", entry.step),) if entry.counts else ()
        return {name: self._read(region) for name, region in (*states, *step)}

    def _state_to_cpu(
        self, entry: HostState, values: Mapping[str, torch.Tensor], inplace: bool
    ) -> None:
        if not values:
            return
        state = entry.optimizer.state[entry.parameter]
        for name, value in values.items():
            there = state.get(name)
            if inplace and isinstance(there, torch.Tensor):
                there.copy_(value)
            else:
                state[name] = value

    def _read(self, region: int) -> torch.Tensor:
        return view_as_torch(self.device.read(region))


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
    return float(any(isinstance(state.get(name), torch.Tensor) for name, _ in entry.states))


def _take(target: torch.Tensor, values: torch.Tensor, inplace: bool) -> None:
    """Give a host tensor values: in its memory, or in new memory where others keep the old."""
    if isinstance(target, SambaTensor) and not target.has_data:
        target.data = values
    elif inplace:
        overwrite(target, values)
    else:
        replace(target, values)
