"""Load a PEF for a model: what ``trace_graph`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from emulator.forks import refuse_in_child
from emulator.mesh.chips import Chips
from pef_schema.program import Graph, Program
from samba.compiler.arithmetic import check_arithmetic, compiled_arithmetic, wanted_arithmetic
from samba.compiler.gradient_flow import with_kept_state
from samba.compiler.optimizers import as_optimizers
from samba.compiler.rounding import apply_arithmetic
from samba.distributed.replicas import replicas_of
from samba.errors import ArgumentError
from samba.nn.converted import converted_last
from samba.sambatensor import SambaTensor
from samba.session.check_pef import check_optimizers, narrow_losses, tell_rates
from samba.session.chips import wanted_chips
from samba.session.host_tensors import HostTensor, host_tensors, model_tensors
from samba.session.loaded import Loaded
from samba.session.mismatch import GraphMismatch, refuse_other_graph
from samba.session.parsing import parse_pef
from samba.session.settings import checks_indices, loss_index_tuple, parsed_config
from samba.session.viewed_feeding import with_views
from samba.session.watched_groups import WatchedGroups
from samba.support.progress import stages
from samba.tracer.dropout_rates import rate_argins
from samba.tracer.inputs import TraceInputs, collect_inputs
from samba.tracer.layouts import with_layouts
from samba.tracer.trace_cache import trace_again
from samba.tracer.traced import FROM_DTYPE, Traced

__all__ = ["GraphMismatch", "LoadedModel", "load_pef"]


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
        super().__init__(
            program,
            [given.tensors],
            constants=given.constants,
            check_indices=check_indices,
            chips=chips,
        )
        self.model, self.given = model, given
        self.traced, self.optimizers = traced, optimizers
        self.only.watched = WatchedGroups(optimizers, program)
        values = program.graphs[0].values
        self.outputs = tuple(
            SambaTensor(
                shape=values[o.value].shape,
                dtype=FROM_DTYPE[values[o.value].dtype],
                name=o.name,
            )
            for o in program.graphs[0].outputs
        )

    def traces(self) -> list[tuple[torch.nn.Module, Traced]]:
        """The model with its trace."""
        return [(self.model, self.traced)]

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
        self.to_rdu(self._with_values(), self.optimizers, operation="to_device()")
        self._inputs_to_device(0, self.traced.sources, forgotten)
        self.spill_weights()

    def _with_values(self) -> torch.nn.Module:
        """The model whose values count: the traced one, unless that has none.

        A script that traces a model on the meta device makes it anew with values, converts it, and
        leaves the rest to names.
        """
        other = converted_last()
        if other is None or type(other) is not type(self.model) or other is self.model:
            return self.model
        return other if _lacks_values(self.model) else self.model

    def host_state(self, region: int) -> torch.Tensor:
        """Values on the host of a region of optimizer state: the first ones before any step."""
        for entry in self._states(self.optimizers, "optim_dict"):
            for name, place in entry.states:
                value = entry.optimizer.state.get(entry.parameter, {}).get(name)
                if place == region and isinstance(value, torch.Tensor) and not value.is_meta:
                    return value.to(FROM_DTYPE[self.program.regions[region].dtype])
        return super().host_state(region)


def _only_graph(program: Program, pef: str) -> Graph:
    """The graph of a PEF that has one."""
    if len(program.graphs) == 1:
        return program.graphs[0]
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
) -> Loaded:
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
        program = parse_pef(pef)
        graph = _only_graph(program, pef)
        stage.start("tracing")
        given = collect_inputs(model, inputs)
        traced = trace_again(
            model, given, inference=program.inference, root=graph.name, rates=rate_argins(graph)
        )
    given = with_layouts(given, traced.looks)
    given = with_views(given, traced, model, inference=program.inference)
    found = as_optimizers(optimizers)
    if program.inference and parsed_config(config).get("inference"):
        found = ()  # scripts build their optimizer whatever the mode, and both sides agree on it
    arithmetic = compiled_arithmetic(dict(program.metadata))
    check_arithmetic(wanted_arithmetic(parsed_config(config)), arithmetic, pef=pef)
    traced = with_kept_state(apply_arithmetic(traced, arithmetic))
    refuse_other_graph(traced, program, pef=pef)
    program = narrow_losses(loss_index_tuple(loss_indices), program, pef=pef)
    check_optimizers(found, traced, program, pef=pef)
    tell_rates(traced, program)
    wanted = parsed_config(config)
    loaded = LoadedModel(
        model,
        given,
        traced,
        found,
        program,
        check_indices=checks_indices(wanted),
        chips=wanted_chips(wanted, pef=pef),
    )
    loaded.join(replicas_of(loaded.device, pef, data_parallel_mode, distlearn_config))
    loaded.watch((model,), found)
    return loaded
