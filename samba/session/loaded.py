"""A program on the device together with the host models that it mirrors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch

from emulator.device import Device
from emulator.errors import DeviceError
from emulator.held_signals import HELD
from emulator.mesh.chips import Chips
from pef_schema.program import Program, Role
from samba.compiler.optimizers import as_optimizers
from samba.distributed.replicas import Replicas
from samba.errors import ArgumentError, NotCopyable, literal
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.feeding import Feeder, slots_of_all
from samba.session.given_values import fitting
from samba.session.graphs import GraphPart
from samba.session.host_tensors import (
    HostState,
    HostTensor,
    host_tensors,
    model_tensors,
    optimizer_states,
    with_values,
)
from samba.session.host_writes import HostWrites
from samba.session.index_checks import checks_by_region, find_index_checks, warn_of_computed
from samba.session.joining import joining
from samba.session.known_buffers import KnownBuffers
from samba.session.layout_feeding import feeder_of
from samba.session.running import Runner
from samba.session.spilling import Spill, spill_weights
from samba.session.turns import Turns
from samba.session.watched_groups import WatchedGroups
from samba.session.watching import WatchedModes
from samba.support.deviations import Deviations
from samba.tensor.labels import mark_fast_access
from samba.tensor.views import read_as_numpy, view_as_torch
from samba.tracer.inputs import Constant
from samba.tracer.traced import Traced


class Evaluates(Protocol):
    """What runs programs of its own over the memory of a loaded one."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Their devices, the oldest first."""
        ...


class Loaded:
    """A program on the device together with the host models it mirrors.

    SambaTensors see its memory as :class:`samba.tensor.device_memory.DeviceTensors`.

    Args:
        program: The program.
        parts: Its graphs.
        traces: The models with their traces, of which the graphs are parts; several of one model
            that was traced several times.
        constants: Arguments by name that are constants of the graphs.
        check_indices: Whether computed indices are looked at in every run, too.
        chips: Where it runs, on one chip if None.

    Attributes:
        outputs: Handles of the outputs of all graphs.
        evaluators: Its evaluators that a script still has, the oldest first.

    Raises:
        IndexOutOfRange: If a constant of the program is used as indices that are out of range.
    """

    writes: HostWrites
    """The watcher of the host's tensors, from :meth:`watch` on."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[GraphPart],
        traces: Sequence[tuple[torch.nn.Module, Traced]],
        *,
        constants: Sequence[tuple[str, Constant]] = (),
        check_indices: bool = False,
        chips: Chips | None = None,
    ) -> None:
        self.program = program
        checks = [find_index_checks(program, number) for number in range(len(program.graphs))]
        computed = {number: check.computed for number, check in enumerate(checks)}
        if not check_indices:
            warn_of_computed(program, computed)
        with PROFILER.event("SAMBA_INIT_RUNTIME"):
            device = Device(program, computed if check_indices else None, chips)
        self.device, self.replicas, self.turns = device, Replicas(device), Turns()
        self.evaluators: WeakValueDictionary[int, Evaluates] = WeakValueDictionary()
        self._deviations = Deviations()
        self._checks_of_region = checks_by_region(program, checks)
        self._parts, self._traces = tuple(parts), tuple(traces)
        self.outputs = tuple(tensor for part in parts for tensor in part.outputs)
        self._places = {
            source.name: graph.values[source.value].region
            for graph, part in zip(program.graphs, parts, strict=True)
            for source in part.traced.sources
        }
        known: set[int] = set()
        self._runners = {
            graph.name: Runner(
                device,
                self.replicas,
                feeder_of(program, part.given, number, constants=constants, checks=check.fed),
                number,
                known,
            )
            for number, (graph, part, check) in enumerate(
                zip(program.graphs, parts, checks, strict=True)
            )
        }
        self._every = list(self._runners.values())
        if len(program.graphs) != 1:
            feeder = Feeder(program, slots_of_all(program, [check.fed for check in checks]))
            self._every.append(Runner(device, self.replicas, feeder, None, known))
        self._has_spilled = False
        self.only = self._every[-1]
        """Runner where no graph is named: of the only graph, or of all in their order."""
        for graph in program.graphs:
            mark_fast_access(graph.values[v].name for v in graph.inputs)
            mark_fast_access(f"{output.name}__grad" for output in graph.outputs)

    def join(self, replicas: Replicas) -> None:
        """Make later runs together with other replicas, and set tensors together with them."""
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

    def watch(self, optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
        """Look after host tensors, modes and parameter groups from now on.

        Args:
            optimizers: The optimizers that were loaded.
        """
        models = self.models()
        self.writes = HostWrites(self, models, optimizers, KnownBuffers(self._traces))
        for runner in self._every:
            runner.watch(
                WatchedGroups(optimizers, self.program),
                WatchedModes(models[0] if len(models) == 1 else None, self.program),
                self.writes,
            )

    @property
    def gradients_wait(self) -> bool:
        """Whether the device has gradients that no update has used."""
        return any(runner.gradients.waits for runner in self._every)

    def close(self) -> None:
        """Look after nothing any more: the program leaves the device."""
        self.writes.close()

    def runner(self, graph_name: str | None = None) -> Runner:
        """The runner of a graph.

        Args:
            graph_name: Its name; None for the only one, or for all in their order.

        Raises:
            ArgumentError: If there is no graph of that name.
        """
        match = self.only if graph_name is None else self._named(graph_name)
        if match is None:
            raise ArgumentError(
                where="session.run(graph_name=...)",
                found=literal(graph_name),
                wanted=" or ".join(map(repr, self._runners)),
                hint="The .pef.log beside the PEF lists its graphs.",
            )
        return match

    def _named(self, graph_name: Any) -> Runner | None:
        return self._runners.get(graph_name) if isinstance(graph_name, str) else None

    # -- tensors by name, as SambaTensors ask for them ----------------------------------

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        """What is on the device stays there: neither ``copy`` nor ``pickle`` take it along."""
        raise NotCopyable(what="loaded program")

    def knows(self, name: str) -> bool:
        """Whether the program has a tensor of that name."""
        return self.device.knows(name)

    def has_grad(self, name: str) -> bool:
        """Whether the program has a gradient for it."""
        try:
            self.device.gradient_of(name)
        except DeviceError:
            return False
        return True

    def read(self, name: str) -> torch.Tensor:
        """A fresh copy of a tensor's device memory."""
        with self.turns.held(), self.replicas.getting_tensors():
            return view_as_torch(self.device.read(self.device.region_of(name)))

    def read_grad(self, name: str) -> torch.Tensor:
        """A fresh copy of its gradient."""
        with self.turns.held():
            return view_as_torch(self.device.read(self.device.gradient_of(name)))

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
        values = read_as_numpy(tensor, name)
        self._check_indices(region, values)
        with (
            self.turns.held(),
            self.replicas.same_values((region,)),
            PROFILER.event("PyRT_SET_TENSORS"),
        ):
            self.device.write(region, values, name=name)
        self.note_written((region,))

    def _check_indices(self, region: int, values: np.ndarray) -> None:
        for check in self._checks_of_region.get(region, ()):
            check.check(np.ascontiguousarray(values))

    def write_grad(self, name: str, tensor: torch.Tensor, *, stays: bool = False) -> None:
        """Copy host values to its gradient on the device.

        Args:
            name: Name of the tensor.
            tensor: The values.
            stays: Whether they are meant for all runs that follow, if it is an output.
        """
        region, where = self.device.gradient_of(name), f"{name}__grad"
        values = read_as_numpy(self._fitting(tensor, region, where), where)
        with self.turns.held():
            self.device.write(region, values, name=where)
            self.note_gradients((region,), stays=stays)

    def _fitting(self, tensor: torch.Tensor, region: int, name: str) -> torch.Tensor:
        """A tensor in the type of its region; a warning says once that it is cast."""
        target = self.device.program.regions[region]
        return fitting(tensor, target, name=name, deviations=self._deviations)

    # -- what runs have to know ---------------------------------------------------------

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

    def models(self) -> list[torch.nn.Module]:
        """The models that were loaded, each once."""
        return list({id(model): model for model, _ in self._traces}.values())

    def tensors_by_name(self) -> dict[str, SambaTensor]:
        """Traced host tensors by name: inputs, parameters, buffers and output handles."""
        tensors: dict[str, SambaTensor] = {}
        for part in self._parts:
            tensors = host_tensors(part.traced.sources) | tensors
        return tensors | {o.sn_name: o for o in self.outputs}

    def traces_of(self, model: torch.nn.Module, operation: str) -> list[Traced]:
        """The traces of a model, or of one like it.

        Args:
            model: The model.
            operation: Who asks, for errors.

        Raises:
            ArgumentError: If neither it nor one of its class was traced.
        """
        own = [traced for other, traced in self._traces if other is model]
        own = own or [traced for other, traced in self._traces if type(other) is type(model)]
        if not own:
            classes = dict.fromkeys(type(other).__name__ for other, _ in self._traces)
            raise ArgumentError(
                where=f"session.{operation}",
                found=f"{type(model).__name__}, which was not traced",
                wanted=" or ".join(classes),
                hint="Give a module that was given to trace_multigraph.",
            )
        return own

    def model_tensors(self, model: torch.nn.Module, operation: str) -> list[HostTensor]:
        """Parameters and buffers of a traced model, or of one like it, with their regions.

        Args:
            model: The model.
            operation: Who asks, for errors.
        """
        by_path: dict[str, HostTensor] = {}
        for traced in self.traces_of(model, operation):
            for tensor in model_tensors(model, traced, self._places, operation=operation):
                by_path.setdefault(tensor.path, tensor)
        return list(by_path.values())

    def all_tensors(self, operation: str) -> list[HostTensor]:
        """Parameters and buffers of everything that was traced, with their regions."""
        return [t for model in self.models() for t in self.model_tensors(model, operation)]

    def to_device(
        self, forgotten: frozenset[str] = frozenset(), *, spill: Spill | None = None
    ) -> None:
        """Copy weights, buffers, inputs and optimizer state to the device.

        Args:
            forgotten: Names of tensors to leave out.
            spill: The file where weights of the host are written already, if they are.
        """
        self._models_to_device({self._places[n] for n in forgotten & self._places.keys()})
        self._inputs_to_device(forgotten)
        self._spill_weights(spill)

    def _models_to_device(self, left_out: Collection[int]) -> None:
        tensors = self.all_tensors("to_device()")
        self.write_tensors([t for t in tensors if t.region not in left_out])

    def _spill_weights(self, spill: Spill | None) -> None:
        """Let the host's weights rest in a file, once, now that the device has its own."""
        if self._has_spilled:
            return
        self._has_spilled = True
        with self.turns.held():
            everything = self.all_tensors("to_device()")
            weights = [entry.tensor for entry in everything if entry.role is Role.WEIGHT]
            if spill is not None and spill.has_begun:
                spill.take(weights)
            else:  # the values are those of another model, or of several
                spill_weights(weights)

    def _inputs_to_device(self, forgotten: Collection[str]) -> None:
        for graph, part in zip(self.program.graphs, self._parts, strict=True):
            for source in part.traced.sources:
                tensor = source.tensor
                if source.role is not Role.INPUT or tensor is None or source.name in forgotten:
                    continue
                if getattr(tensor, "has_data", True) or getattr(
                    tensor, "materializer_provided", False
                ):
                    region = graph.values[source.value].region
                    array = read_as_numpy(with_values(tensor), source.name)
                    self.device.write(region, array, name=source.name)

    def to_rdu(
        self,
        model: torch.nn.Module,
        optims: Any,
        *,
        buffers_only: bool = False,
        left_out: Collection[int] = (),
        operation: str = "to_rdu()",
    ) -> None:
        """Copy host values into the device's other regions; nothing changes if it raises."""
        self.writes.known.refuse_changed(f"session.{operation}")
        tensors = self.model_tensors(model, operation)
        states = self._states_of(tensors, optims, operation)
        entries = [t for t in tensors if not buffers_only or t.role is Role.BUFFER]
        entries = [t for t in entries if t.region not in left_out]
        self.write_tensors(entries, states)

    def write_tensors(
        self, tensors: Sequence[HostTensor], states: Sequence[HostState] = ()
    ) -> None:
        """Copy tensors and optimizer state to the device; nothing changes there if it raises."""
        regions = [t.region for t in tensors] + [r for entry in states for r in entry.regions]
        # Alone, what a signal cuts short is put back; with others, all of them do the whole.
        whole = nullcontext() if self.replicas.size == 1 else HELD
        with self.turns.held(), self.device.unchanged_on_error() as transaction, whole:
            with self.replicas.same_values(regions), PROFILER.event("PyRT_SET_TENSORS"):
                for entry in tensors:
                    values = entry.array()
                    self._check_indices(entry.region, values)
                    self.device.write(entry.region, values, name=entry.path)
                for entry in states:
                    entry.to_device(self.device)
            with HELD:
                transaction.commit()
                self.writes.copied(tensors)
                self.writes.copied_optimizers([entry.optimizer for entry in states])

    def optimizers_to_rdu(self, optims: Any, *, operation: str = "optimizers_to_rdu()") -> None:
        """Copy optimizer state alone to the device; nothing changes there if it raises."""
        self.write_tensors((), self._states_of((), optims, operation))

    def optimizers_to_cpu(self, optims: Any, *, operation: str = "optimizers_to_cpu()") -> None:
        """Copy optimizer state alone to the host."""
        with self.turns.held():
            self.writes.bring(f"session.{operation}")
            self.read_tensors((), self._states_of((), optims, operation), inplace=False)

    def _states_of(
        self, tensors: Sequence[HostTensor], optims: Any, operation: str
    ) -> list[HostState]:
        """States of optimizers over the traced parameters or over those of a model like it."""
        optimizers = as_optimizers(optims)
        if not optimizers:
            return []
        both = [*self.all_tensors(operation), *tensors]
        return optimizer_states(optimizers, both, self.program, operation=operation)

    def host_state(self, region: int) -> torch.Tensor:
        """Values on the host of a region of optimizer state: those before the first step."""
        return view_as_torch(self.device.at_first(region))

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
            entries = [t for t in tensors if not buffers_only or t.role is Role.BUFFER]
            self.read_tensors(entries, states, inplace=inplace)

    def read_tensors(
        self,
        tensors: Sequence[HostTensor],
        states: Sequence[HostState] = (),
        *,
        inplace: bool = True,
    ) -> None:
        """Copy the device's values of tensors and optimizer state to the host.

        Everything is read before anything is stored: a signal's handler finds all of the new
        values on the host, or none.

        Args:
            tensors, states: Whose values.
            inplace: Whether values are stored in the memory that tensors have, or in new memory.
        """
        device = self.device
        with self.turns.held(), self.replicas.getting_tensors():
            values = [view_as_torch(device.read(entry.region)) for entry in tensors]
        of_states = [entry.read(device) for entry in states]
        with HELD, torch.no_grad():
            for entry, value in zip(tensors, values, strict=True):
                entry.take(value, inplace=inplace)
            for entry, of_state in zip(states, of_states, strict=True):
                entry.take(of_state, inplace=inplace)
            self.writes.copied(tensors)
            self.writes.copied_optimizers([entry.optimizer for entry in states])
