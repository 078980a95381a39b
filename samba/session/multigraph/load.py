"""Load a PEF of several graphs: what ``init_multigraph_runtime`` does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulator.forks import refuse_in_child
from emulator.mesh.chips import Chips
from pef_schema import first_difference
from pef_schema.program import Program, Role
from samba.compiler.arithmetic import check_arithmetic, compiled_arithmetic, wanted_arithmetic
from samba.compiler.rounding import apply_arithmetic
from samba.distributed.replicas import replicas_of
from samba.errors import ArgumentError
from samba.sambatensor import SambaTensor
from samba.session.check_pef import GraphMismatch, changed_constants, without_gradient_arguments
from samba.session.host_tensors import HostTensor, host_tensors, model_tensors
from samba.session.loaded import Loaded
from samba.session.loading import wanted_chips
from samba.session.multigraph.graphs import GraphPart, GraphTrace
from samba.session.program_slot import parse_pef
from samba.session.settings import checks_indices, parsed_config
from samba.tracer.traced import Traced


class LoadedGraphs(Loaded):
    """A program of several graphs, loaded for the modules that were traced.

    Args:
        parts: Its graphs.
        traces: The traces that they are parts of.
        program: The program from the PEF.
        check_indices: Whether computed indices are looked at in every run, too.
        chips: Where it runs, on one chip if None.
    """

    def __init__(
        self,
        parts: Sequence[GraphPart],
        traces: Sequence[GraphTrace],
        program: Program,
        *,
        check_indices: bool = False,
        chips: Chips | None = None,
    ) -> None:
        super().__init__(
            program, [part.given for part in parts], check_indices=check_indices, chips=chips
        )
        self._parts, self._traces = tuple(parts), tuple(traces)
        self.outputs = tuple(tensor for part in parts for tensor in part.outputs)
        self._places = {
            source.name: graph.values[source.value].region
            for graph, part in zip(program.graphs, parts, strict=True)
            for source in part.traced.sources
        }

    def traces(self) -> list[tuple[torch.nn.Module, Traced]]:
        """The modules with their traces."""
        return [(trace.model, trace.traced) for trace in self._traces]

    def tensors_by_name(self) -> dict[str, SambaTensor]:
        """Traced host tensors by name: inputs, parameters, buffers and output handles."""
        found: dict[str, SambaTensor] = {}
        for part in self._parts:
            found = host_tensors(part.traced.sources) | found
        return found | {o.sn_name: o for o in self.outputs}

    def model_tensors(self, model: torch.nn.Module, operation: str) -> list[HostTensor]:
        """Parameters and buffers of a traced module, or of one like it, with their regions."""
        traces = [t for t in self._traces if t.model is model]
        traces = traces or [t for t in self._traces if type(t.model) is type(model)]
        if not traces:
            raise ArgumentError(
                where=f"session.{operation}",
                found=f"a {type(model).__name__} that was not traced",
                wanted=" or ".join(
                    dict.fromkeys(f"a {type(t.model).__name__}" for t in self._traces)
                ),
                hint="Give a module that was given to trace_multigraph.",
            )
        return self._once(traces, model, operation)

    def all_tensors(self, operation: str) -> list[HostTensor]:
        """Parameters and buffers of everything that was traced, with their regions."""
        models = {id(t.model): t.model for t in self._traces}
        return [
            tensor
            for model in models.values()
            for tensor in self._once(
                [t for t in self._traces if t.model is model], model, operation
            )
        ]

    def _once(
        self, traces: Sequence[GraphTrace], model: torch.nn.Module, operation: str
    ) -> list[HostTensor]:
        """Parameters and buffers that any of several traces of a module uses."""
        found: dict[str, HostTensor] = {}
        for trace in traces:
            for tensor in model_tensors(
                model, trace.traced, self.program, operation=operation, places=self._places
            ):
                found.setdefault(tensor.path, tensor)
        return list(found.values())

    def to_device(self, forgotten: frozenset[str] = frozenset()) -> None:
        """Copy weights, buffers and inputs to the device.

        Args:
            forgotten: Names of inputs to leave out.
        """
        self.write_tensors(self.all_tensors("to_device()"))
        for number, part in enumerate(self._parts):
            self._inputs_to_device(number, part.traced.sources, forgotten)
        self.spill_weights()


def load_graphs(parts: Sequence[GraphPart], traces: Sequence[GraphTrace], pef: str) -> LoadedGraphs:
    """Read a PEF of several graphs and check that it is of these.

    Args:
        parts: The graphs that the session has.
        traces: The traces that they are parts of.
        pef: Path of the PEF.

    Returns:
        The loaded program; nothing has been transferred yet.

    Raises:
        PefError: The file is not a whole PEF of a known version.
        ArgumentError: It has other graphs.
        ArithmeticMismatch: The options ask for another arithmetic than the compiled one.
        GraphMismatch: A graph or the regions of its tensors are not the compiled ones.
        Disagreement: Other replicas load something else.
        ForkedProcess: The process was forked while a device was open.
    """
    refuse_in_child("session.init_multigraph_runtime()")
    program = parse_pef(pef)
    compiled = [graph.name for graph in program.graphs]
    given = [part.traced.name for part in parts]
    if compiled != given:
        raise ArgumentError(
            where="session.init_multigraph_runtime(pef)",
            found=f"graphs {', '.join(given)} in the session",
            wanted=f"{', '.join(compiled)}, the graphs of {pef}, in this order",
            hint="Repeat the calls of trace_multigraph and add_graph that were compiled.",
        )
    arithmetic = compiled_arithmetic(dict(program.metadata))
    check_arithmetic(wanted_arithmetic(parsed_config(None)), arithmetic, pef=pef)
    for part, graph in zip(parts, program.graphs, strict=True):
        difference = first_difference(
            without_gradient_arguments(graph),
            without_gradient_arguments(apply_arithmetic(part.traced, arithmetic).graph()),
        )
        if difference is not None:
            raise GraphMismatch(pef=pef, difference=f"graph {graph.name}, {difference}")
        changed = changed_constants(part.traced, graph, program)
        if changed:
            raise GraphMismatch(pef=pef, difference=f"graph {graph.name}, {changed}")
    different = list(_regions_that_differ(parts, program))
    if different:
        raise GraphMismatch(pef=pef, difference="\n".join(different))
    config = parsed_config(None)
    loaded = LoadedGraphs(
        parts,
        traces,
        program,
        check_indices=checks_indices(config),
        chips=wanted_chips(config, pef=pef),
    )
    loaded.join(replicas_of(loaded.device, pef))
    loaded.watch(tuple({id(t.model): t.model for t in traces}.values()))
    return loaded


def _regions_that_differ(parts: Sequence[GraphPart], program: Program) -> list[str]:
    lines = []
    for part, graph in zip(parts, program.graphs, strict=True):
        pairs = [
            (source.name, source.region_name, graph.values[source.value].region)
            for source in part.traced.sources
            if source.role in (Role.INPUT, Role.WEIGHT, Role.BUFFER)
        ]
        outputs = zip(part.traced.outputs, graph.outputs, strict=True)
        pairs += [(ours.name, ours.region_name, theirs.region) for ours, theirs in outputs]
        lines += [
            f"graph {graph.name}, tensor {name}: region {region} here, "
            f"{program.regions[index].name} in the PEF"
            for name, region, index in pairs
            if region != program.regions[index].name
        ]
    return lines
