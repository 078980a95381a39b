"""Load a PEF for a model, or for graphs: what ``trace_graph`` and a multigraph runtime do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from emulator.mesh.chips import Chips, open_chips
from emulator.mesh.layout import Split
from emulator.start import refuse_in_child
from pef_schema import first_difference
from pef_schema.program import Program, Role
from samba.compiler.arithmetic import check_arithmetic, compiled_arithmetic, wanted_arithmetic
from samba.compiler.gradient_flow import with_kept_state
from samba.compiler.optimizers import as_optimizers, refuse_shared_weights
from samba.compiler.rounding import apply_arithmetic
from samba.distributed.mesh import processes_of_chips
from samba.distributed.replicas import replicas_of
from samba.errors import ArgumentError, described
from samba.nn.converted import converted_last
from samba.remembering.memory import open_memory, remembers_traces
from samba.sambatensor import SambaTensor
from samba.session.check_pef import (
    GraphMismatch,
    changed_constants,
    check_optimizers,
    narrow_losses,
    refuse_other_graph,
    tell_rates,
    without_gradient_arguments,
)
from samba.session.graphs import GraphPart, GraphTrace
from samba.session.layout_feeding import with_layouts_and_views
from samba.session.loaded import Loaded
from samba.session.outputs import output_handles
from samba.session.program_slot import parse_pef, parse_with_digest
from samba.session.settings import checks_indices, loss_index_tuple, note_settled, parsed_config
from samba.support.deviations import Deviations
from samba.support.layout import seconds_text
from samba.support.progress import stages
from samba.tracer.inputs import TraceInputs, collect_inputs
from samba.tracer.random_draws import rate_argins
from samba.tracer.trace_cache import forget_trace, trace_again
from samba.tracer.traced import FROM_DTYPE, Traced


class LoadedModel(Loaded):
    """A program of one graph, loaded for one model.

    Args:
        model: The model.
        given: The inputs it was traced with.
        traced: Its trace.
        optimizers: Its optimizers.
        program: The program from the PEF.
        check_indices: Whether computed indices are looked at in every run, too.
        chips: Where it runs, on one chip if None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        given: TraceInputs,
        traced: Traced,
        optimizers: tuple[torch.optim.Optimizer, ...],
        program: Program,
        *,
        check_indices: bool = False,
        chips: Chips | None = None,
    ) -> None:
        outputs = output_handles(program.graphs[0])
        super().__init__(
            program,
            [GraphPart(traced=traced, given=given.tensors, outputs=outputs)],
            [(model, traced)],
            constants=given.constants,
            check_indices=check_indices,
            chips=chips,
        )
        self.model, self.given = model, given
        self.traced, self.optimizers = traced, optimizers

    def traces_of(self, model: torch.nn.Module, operation: str) -> list[Traced]:
        """The trace, of whatever model: one of another class may have the same structure."""
        del model, operation
        return [self.traced]

    def _models_to_device(self, left_out: Collection[int]) -> None:
        model, optimizers = self._with_values(), self.optimizers
        self.to_rdu(model, optimizers, left_out=left_out, operation="to_device()")

    def _with_values(self) -> torch.nn.Module:
        """The model whose values count: the traced one, unless that has none.

        A script that traces a model on the meta device makes it again with values, converts it, and
        leaves the rest to names.
        """
        other = converted_last()
        if other is None or type(other) is not type(self.model) or other is self.model:
            return self.model
        return other if _lacks_values(self.model) else self.model

    def host_state(self, region: int) -> torch.Tensor:
        """The host's values of a region of optimizer state; what it starts from before any step."""
        for entry in self._states_of((), self.optimizers, "optim_dict"):
            for name, place in entry.states:
                value = entry.optimizer.state.get(entry.parameter, {}).get(name)
                if place == region and isinstance(value, torch.Tensor) and not value.is_meta:
                    return value.to(FROM_DTYPE[self.program.regions[region].dtype])
        return super().host_state(region)


def _refuse_several(program: Program, pef: str) -> None:
    """Raise unless a PEF has one graph."""
    if len(program.graphs) == 1:
        return
    names = ", ".join(graph.name for graph in program.graphs)
    raise ArgumentError(
        where="utils.trace_graph(pef=...)",
        found=f"{pef}, which holds "
        + (f"{len(program.graphs)} graphs: {names}" if names else "no graph"),
        wanted="a PEF of one graph, as session.compile writes it",
        hint="Graphs of compile_multigraph are loaded with trace_multigraph, add_graph and "
        "samba.session.init_multigraph_runtime(pef)."
        if names
        else "Compile the model again: samba.session.compile(model, inputs, optimizer).",
    )


def _lacks_values(model: torch.nn.Module) -> bool:
    """Whether a parameter is empty, and nothing makes its values."""
    return any(
        isinstance(p, SambaTensor) and not p.has_data and not p.materializer_provided
        for p in model.parameters()
    )


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
) -> LoadedModel:
    """Read a PEF, trace the model again if it may have changed, and check that the two agree.

    Args:
        model, inputs, optimizers: As in ``utils.trace_graph``.
        pef: Path of the PEF.
        loss_indices: The losses, all that were compiled if None, else these among them.
        config: ``config_dict`` of the application; the last parsed command line if None.
        data_parallel_mode, distlearn_config: As in ``utils.trace_graph``.

    Returns:
        The loaded program; nothing has been transferred yet.

    Raises:
        ArgumentError: If no PEF is named, it has no graph or several, or the losses are not the
            compiled ones.
        PefError: If the file is not a whole PEF of a known version.
        ArithmeticMismatch: If the options ask for another arithmetic than the compiled one.
        GraphMismatch: If the model's graph differs from the compiled one; AutocastMismatch if
            ``torch.autocast`` may be why, NamesMismatch if only names differ.
        MissingOptimizer, OptimizerMismatch: If optimizers are given that the PEF does not have.
        Disagreement: If other replicas load something else.
        ForkedProcess: In a process that was forked while a device was open.
    """
    refuse_in_child("utils.trace_graph()")
    if not pef:
        raise ArgumentError(
            where="utils.trace_graph(pef=...)",
            found="no path",
            wanted="the path of a PEF",
            hint="session.compile(...) writes one and returns its path.",
        )
    with stages(f"load {Path(pef).name}", "reading", "tracing") as stage:
        stage.start("reading")
        program, digest = parse_with_digest(pef) if remembers_traces() else (parse_pef(pef), "")
        _refuse_several(program, pef)
        stage.start("tracing")
        given = collect_inputs(model, inputs)
        arithmetic = compiled_arithmetic(dict(program.metadata))
        check_arithmetic(wanted_arithmetic(parsed_config(config)), arithmetic, pef=pef)
        traced, how = _trace(model, given, program, pef=pef, digest=digest)
    start = (f"{how} in {seconds_text(stage.seconds['tracing'])}",)
    given = with_layouts_and_views(given, traced, model, inference=program.inference)
    used = as_optimizers(optimizers)
    if program.inference and parsed_config(config).get("inference"):
        used = ()  # scripts build their optimizer whatever the mode, and both sides agree on it
    program = narrow_losses(loss_index_tuple(loss_indices), program, pef=pef)
    refuse_shared_weights(traced, used)
    check_optimizers(used, traced, program, pef=pef)
    tell_rates(traced, program)
    note_settled(program, [entry.tensor for entry in given.tensors])
    options = parsed_config(config)
    loaded = LoadedModel(
        model,
        given,
        traced,
        used,
        program,
        check_indices=checks_indices(options),
        chips=wanted_chips(options, pef=pef),
    )
    loaded.join(replicas_of(loaded.device, pef, data_parallel_mode, distlearn_config))
    loaded.watch(used)
    loaded.only.start = start
    return loaded


def _trace(
    model: torch.nn.Module, given: TraceInputs, program: Program, *, pef: str, digest: str
) -> tuple[Traced, str]:
    """The trace of a model that computes what a PEF does, remembered where that can be.

    Args:
        model: The model.
        given: Its inputs.
        program: The program from the PEF.
        pef: The path of the PEF.
        digest: Its digest; empty for no memory of traces.

    Returns:
        The trace, with the rounding of the PEF, and how it was found, for people.
    """
    (graph,) = program.graphs
    memory = open_memory(model, given, inference=program.inference) if digest else None
    traced = None if memory is None else memory.recall(graph, pef=digest)
    if traced is not None:
        return traced, "remembered"
    if memory is not None:
        forget_trace(model)  # that of a compile is compared by less than the memory's key
    with nullcontext() if memory is None else memory.watching():
        traced = trace_again(
            model, given, inference=program.inference, root=graph.name, rates=rate_argins(graph)
        )
    arithmetic = compiled_arithmetic(dict(program.metadata))
    traced = with_kept_state(apply_arithmetic(traced, arithmetic))
    refuse_other_graph(traced, program, pef=pef)
    if memory is not None:
        memory.keep(traced, graph, pef=digest)
    return traced, "traced"


def load_graphs(parts: Sequence[GraphPart], traces: Sequence[GraphTrace], pef: str) -> Loaded:
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
    names = [part.traced.name for part in parts]
    if compiled != names:
        raise ArgumentError(
            where="session.init_multigraph_runtime(pef)",
            found=f"graphs {', '.join(names)} in the session",
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
    loaded = Loaded(
        program,
        parts,
        [(trace.model, trace.traced) for trace in traces],
        check_indices=checks_indices(config),
        chips=wanted_chips(config, pef=pef),
    )
    loaded.join(replicas_of(loaded.device, pef))
    loaded.watch()
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


deviations = Deviations()


def wanted_chips(config: Mapping[str, Any], *, pef: str = "") -> Chips | None:
    """The chips that a configuration asks for.

    Under a launcher that has started several processes, which are not replicas, these are chips of
    all of them.

    Args:
        config: A ``config_dict``, or the command line that was parsed last.
        pef: Path of the PEF that they are for; several processes compare what is in it.

    Returns:
        The chips; None for one.

    Raises:
        ArgumentError: If the number of chips or what is divided among them is none that exists.
        NotEnoughChips: If this process does not see so many.
        DataParallelError: If other processes do not come, or want something else.

    Example:
        >>> wanted_chips({"n_chips": 1, "tensor_parallel": "none"}) is None
        True
    """
    count, split = _count(config.get("n_chips")), _split(config.get("tensor_parallel"))
    if count > 1 and split is Split.NONE:
        deviations.tell(
            "one-chip",
            f"--n-chips {count} without --tensor-parallel batch or weight: the program runs on one "
            "device",
        )
    if count == 1 and split is not Split.NONE:
        deviations.tell(
            "one-chip",
            f"--tensor-parallel {split} without --n-chips 2 or more: the program runs on one "
            "device",
        )
    if count == 1 or split is Split.NONE:
        return None
    processes = processes_of_chips(count, split, parallel=bool(config.get("data_parallel")))
    if processes is not None and pef:
        processes.agree_on(pef)
    return open_chips(count, split, processes)


def _count(value: Any) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(
            where="--n-chips, or config_dict['n_chips']",
            found=described(value),
            wanted="a whole number, 1 or more",
        )
    return value


def _split(value: Any) -> Split:
    if value is None:
        return Split.NONE
    if not isinstance(value, str) or value not in [*Split]:
        raise ArgumentError(
            where="--tensor-parallel, or config_dict['tensor_parallel']",
            found=described(value),
            wanted=" or ".join(Split),
        )
    return Split(value)
