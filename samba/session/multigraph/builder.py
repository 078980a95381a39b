"""Graphs on their way into one PEF: traced, added, compiled, loaded."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pef_schema.printable import some_of
from samba.errors import ArgumentError
from samba.graph import FwdGraph, SambaGraph
from samba.sambatensor import SambaTensor
from samba.session.compiling import compile_graphs, say_created
from samba.session.graphs import (
    GraphPart,
    GraphTrace,
    Traces,
    handle,
    in_types_of_inputs,
    refuse_tied,
)
from samba.session.host_tensors import host_tensors
from samba.session.layout_feeding import with_layouts_and_views
from samba.session.multigraph.cut import parts_of
from samba.session.program_slot import ProgramSlot
from samba.session.settings import check_mapping, compile_settings
from samba.support.deviations import Deviations
from samba.support.given import flag_of, path_of, text_of
from samba.support.progress import stages
from samba.tracer.capture import trace_model
from samba.tracer.inputs import collect_inputs

_OF_THE_HARDWARE = frozenset(
    {
        "app_dir",
        "enable_hypersection",
        "get_output_grads",
        "graph_names",
        "graph_transform_hook",
        "init_output_grads",
        "io_host_memory",
        "is_split_batch",
        "loss_indices",
        "metadata",
        "squeeze_bs_dim",
    }
)
"""Keywords of a compile that mean nothing to forward passes on this device."""

_OWN = ("name", "samba_only", "config_dict", "pef_metadata", "inference")


class GraphBuilder:
    """Graphs that are compiled into one PEF and share its memory.

    Args:
        slot: What is loaded.
    """

    def __init__(self, slot: ProgramSlot) -> None:
        self._slot = slot
        self._graphs: dict[str, FwdGraph] = {}
        self._deviations = Deviations()

    def trace_part(
        self, model: torch.nn.Module, inputs: Any, *, mapping: str, prefix: str
    ) -> tuple[SambaTensor, ...]:
        """Trace a module for graphs: what ``utils.trace_multigraph`` does.

        Args:
            model: The module.
            inputs: What its ``forward`` takes.
            mapping: Wished mapping, empty for that of the compile.
            prefix: Put before the names of its operations.

        Returns:
            Handles of its outputs.

        Raises:
            SambaError: It cannot be traced, was traced with this prefix before, or has tied
                weights.
        """
        if mapping:
            check_mapping(mapping, "utils.trace_multigraph(mapping=...)")
        model = self._slot.onnx.module(model, "utils.trace_multigraph")
        refuse_tied(model)
        self._refuse_second(model, prefix)
        title = f"trace {prefix or type(model).__name__.lower()}"
        with self._slot.tracing(), stages(title, "tracing") as stage:
            stage.start("tracing")
            given = collect_inputs(model, inputs)
            traced = trace_model(model, given, inference=True, prefix=prefix)
        outputs = tuple(handle(traced, o.value, o.name) for o in traced.outputs)
        slot = self._slot
        slot.traces = slot.traces or Traces()
        slot.traces.add(
            GraphTrace(
                model=model,
                traced=traced,
                given=with_layouts_and_views(given, traced, model, inference=True),
                outputs=outputs,
                mapping=mapping,
                prefix=prefix,
            )
        )
        slot.tensors |= host_tensors(traced.sources) | {o.sn_name: o for o in outputs}
        return outputs

    def _refuse_second(self, model: torch.nn.Module, prefix: str) -> None:
        """Refuse to trace a module again under the names that its first trace has."""
        for trace in () if self._slot.traces is None else self._slot.traces.traces:
            if trace.model is model and trace.prefix == prefix:
                named = f"trace_prefix {prefix!r}" if prefix else "no trace_prefix"
                raise ArgumentError(
                    where="utils.trace_multigraph(graph)",
                    found=f"a second trace of this {type(model).__name__} with {named}",
                    wanted="one trace of each graph",
                    hint="For other input shapes, give each trace a trace_prefix of its own; "
                    "session.reset() forgets all traces.",
                )

    def add_graph(self, graph: SambaGraph, overwrite: bool = False) -> None:
        """Add a graph to those that :meth:`compile_multigraph` compiles, in this order.

        Args:
            graph: A ``samba.graph.FwdGraph`` over what ``trace_multigraph`` traced.
            overwrite: Whether it takes the place of a graph of the same name; it is then the
                last.

        Raises:
            ArgumentError: There is a graph of that name already, or it is no ``FwdGraph``.
        """
        where = "session.add_graph(graph)"
        if type(graph) is SambaGraph:
            raise ArgumentError(
                where=where,
                found="a SambaGraph without tensors to start and to stop at",
                wanted="a samba.graph.FwdGraph",
                hint="It says what is compiled: FwdGraph(start, stop, name).",
                deviation="bare-graph",
            )
        if not isinstance(graph, FwdGraph):
            raise ArgumentError(
                where=where, found=type(graph).__name__, wanted="a samba.graph.FwdGraph"
            )
        overwrite = flag_of(overwrite, "session.add_graph(overwrite=...)")
        if graph.name in self._graphs and not overwrite:
            raise ArgumentError(
                where="session.add_graph(graph)",
                found=f"a second graph named {graph.name!r}",
                wanted="a name of its own for each graph",
                hint="To put it in the place of the first, use overwrite=True.",
            )
        self._graphs.pop(graph.name, None)
        self._graphs[graph.name] = graph

    def compile_multigraph(
        self,
        name: str = "",
        samba_only: bool = False,
        *,
        config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None,
        inference: bool | None = None,
        **kwarg: Any,
    ) -> str | None:
        """Compile the graphs that were added into one PEF, for inference.

        Tensors of the same region name share memory between the graphs: weights of a module that
        was traced several times, and inputs and outputs whose ``sn_region_name`` was set to one
        name. An output in the region of an input updates it in place.

        Args:
            name: Name of the program, and of the PEF where no ``pef_name`` is configured; the
                first traced module's lower-cased class name if empty.
            samba_only: Check that the graphs compile, and write nothing.
            config_dict: Parsed command line as a dict (``pef_name``, ``output_folder``,
                ``mapping``, ``optim_level``); the last one parsed if None.
            pef_metadata: Text to store in the PEF.
            inference: Accepted if it is not False.
            **kwarg: Accepted; they steer the hardware compiler and change nothing here. Those that
                neither a page nor an application knows are told.

        Returns:
            Path of the PEF; None with ``samba_only``. A ``.pef.log`` that lists the graphs and
            their sections lies beside it.

        Raises:
            SambaError: No graph was added, graphs do not go together, or the PEF cannot be
                written; a PEF that was there before is left as it was.
        """
        text_of(name, "session.compile_multigraph(name=...)")
        samba_only = flag_of(samba_only, "session.compile_multigraph(samba_only=...)")
        unknown = [name for name in kwarg if name not in _OF_THE_HARDWARE]
        if unknown:
            near = {one: difflib.get_close_matches(one, _OWN, 1) for one in unknown}
            guesses = ", ".join(f"{close[0]} for {one}" for one, close in near.items() if close)
            guess = f"; did you mean {guesses}?" if guesses else ""
            self._deviations.tell(
                "unknown-keyword",
                f"session.compile_multigraph({some_of([f'{one}=...' for one in unknown])}): "
                f"undocumented keywords have no effect{guess}",
            )
        if inference is False:
            raise ArgumentError(
                where="session.compile_multigraph(inference=...)",
                found="False",
                wanted="True or nothing: graphs are forward passes",
                hint="A model that trains is compiled with session.compile.",
            )
        parts, traces = self._parts("compile_multigraph()")
        program_name = name or type(traces[0].model).__name__.lower()
        start = time.perf_counter()
        path = compile_graphs(
            [part.traced for part in parts],
            settings=compile_settings(
                name=program_name, config=config_dict, inference=True, is_split_batch=False
            ),
            mapping=_mapping(traces),
            metadata=pef_metadata,
            write=not samba_only,
        )
        if path is None:
            return None
        then = "samba.session.init_multigraph_runtime(pef=...)"
        say_created(path, seconds=time.perf_counter() - start, otherwise=then)
        return str(path)

    def init_multigraph_runtime(self, pef: str, transfer_device: bool = True) -> None:
        """Load a PEF of several graphs for the graphs that were added.

        Args:
            pef: Path of the PEF; the session's own if empty.
            transfer_device: Whether weights, buffers and inputs are transferred now.

        Raises:
            SambaError: The PEF cannot be read, or its graphs are not those that were added. What
                was loaded before stays loaded.
        """
        from samba.session.host_writes import tell_if_older  # noqa: PLC0415  # loads jax
        from samba.session.loading import load_graphs  # noqa: PLC0415  # as well

        self._slot.refuse_inside("init_multigraph_runtime()")
        where = "session.init_multigraph_runtime"
        transfer_device = flag_of(transfer_device, f"{where}(transfer_device=...)")
        path = path_of(pef, f"{where}(pef)") or self._slot.pef_path
        if not path:
            raise ArgumentError(
                where=f"{where}(pef)",
                found="no path",
                wanted="the path of a PEF",
                hint="session.compile_multigraph(...) writes one and returns its path.",
            )
        parts, traces = self._parts("init_multigraph_runtime()")
        loaded = load_graphs(parts, traces, path)
        if transfer_device:
            tell_if_older(loaded.models(), (), "init_multigraph_runtime")
            loaded.to_device()
        self._slot.take(loaded, path)

    def _parts(self, operation: str) -> tuple[Sequence[GraphPart], Sequence[GraphTrace]]:
        """The graphs as parts of the traces, as far as they go together now."""
        if not self._graphs or self._slot.traces is None:
            raise ArgumentError(
                where=f"session.{operation}",
                found="no graphs",
                wanted="graphs from trace_multigraph and add_graph",
            )
        traces = self._slot.traces
        parts = parts_of(list(self._graphs.values()), traces)
        return in_types_of_inputs(parts, self._deviations), traces.traces


def _mapping(traces: Sequence[GraphTrace]) -> str:
    """The mapping that traces were given, empty if none was."""
    mappings = {trace.mapping for trace in traces if trace.mapping}
    if len(mappings) > 1:
        raise ArgumentError(
            where="session.compile_multigraph()",
            found=f"traces with mapping {' and '.join(sorted(mappings))}",
            wanted="one mapping for all graphs of a PEF",
        )
    return mappings.pop() if mappings else ""
