"""Capture a torch model as a functional graph of ATen operations.

The model runs once, on fake tensors, under ``torch.export``; decompositions are
limited to what the device cannot lower. Nothing of the model changes. The stages, each of which
hands its result on:

=========  =====================================================================
prepare    what watches the trace, and what is another meanwhile (``preparing``)
export     torch's graph of ``forward``, made exact
lower      the same in operations that the device has
convert    nodes with names and source lines (``convert``)
=========  =====================================================================
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram

from emulator.handler_errors import HANDLER_ERRORS, raise_error_of_handler
from emulator.held_signals import HELD
from emulator.op_facts.table import op_facts
from samba.support.naming import root_name
from samba.support.tracing import one_trace
from samba.tracer.bag_frequencies import tell_bag_frequencies
from samba.tracer.casts import insert_casts
from samba.tracer.changed_state import TraceState
from samba.tracer.complex_nodes import (
    NOT_COMPLEX,
    lacks_complex,
    may_be_decomposed,
    only_complex,
)
from samba.tracer.convert import convert
from samba.tracer.data_dependent.masked_rows import bound_selections
from samba.tracer.dropped_itself import refuse_shared
from samba.tracer.embedding_renorms import renorms_as_values
from samba.tracer.errors import TraceError, UnsupportedOps
from samba.tracer.failure import explain, users_frames
from samba.tracer.functional import functional_form
from samba.tracer.grad_mode import detach_ungraded
from samba.tracer.inputs import TraceInputs
from samba.tracer.layouts import laid_out
from samba.tracer.looks import Looks
from samba.tracer.marker_ops import CHECK, COTANGENT, MARKER
from samba.tracer.masks import refuse_masks
from samba.tracer.of_nothing import refuse_of_nothing
from samba.tracer.operand_types import refuse_types
from samba.tracer.overwritten import refuse_overwritten
from samba.tracer.preparing import Prepared, plain_tensors, prepare, quiet
from samba.tracer.raising import refuse_raising
from samba.tracer.refuse import describe, refuse_scripted, refused_ops
from samba.tracer.repeated_calls import steady_trace
from samba.tracer.seeds import refuse_seeded
from samba.tracer.strided_views import exact_writes, name_elements
from samba.tracer.torch_internals import (
    decompositions,
    is_operation,
)
from samba.tracer.traced import Traced
from samba.tracer.viewed_inputs import lies_otherwise, refuse_views, viewed_inputs

_log = logging.getLogger("samba")
_MAX_DECOMPOSITION_ROUNDS = 8
_CHECKS = (
    *("aten._assert_tensor_metadata", "aten._assert_scalar", "aten._assert_async"),
    "aten.sym_constrain_range",
)
"""How the names of operations begin that do nothing but raise."""


def trace_model(
    model: torch.nn.Module,
    given: TraceInputs,
    *,
    inference: bool = False,
    root: str = "",
    prefix: str = "",
    rates: Sequence[bool] = (),
) -> Traced:
    """Trace a model on inputs into a functional graph.

    Args:
        model: The model; its parameters and buffers become sources of the graph.
        given: What ``forward`` takes, from :func:`samba.tracer.inputs.collect_inputs`. Only
            shapes, dtypes and names matter.
        inference: Trace in evaluation mode and without gradients.
        root: Root of all names; the lower-cased class name if empty.
        prefix: Put before the names of operations, and so of outputs; parameters, buffers and
            inputs keep theirs.
        rates: For each operation that takes a dropout rate, in order, whether the rate is an
            argin even if it is 0; those of pure dropout always are.

    Returns:
        The graph with names, source lines and the tensors it refers to.

    A second thread waits until the first has its graph: torch's exporter and what is patched while
    it works belong to the process.

    Raises:
        ChangedAttributes: If ``forward`` changes what is no buffer, and its results change too.
        DrawnNumbers: If it computes with what Python's or NumPy's generators draw.
        SeededNumbers: If it draws from torch's generator after it has seeded it.
        DataDependentBranch: If ``forward`` branches on the value of a tensor.
        ShapeMismatch: If shapes in ``forward`` do not fit; torch's text is kept.
        UnsupportedOps: If operations have no lowering; names all of them.
        TraceError: If torch cannot export the model for another reason.
    """

    looks, name = Looks(), root or root_name(model)

    def trace(state: TraceState, given: TraceInputs = given) -> Traced:
        prepared = prepare(model, given, looks, state, inference=inference)
        with prepared.seeds.watching():
            exported = _export(prepared)
        lowered = _lower(exported, name)
        traced = convert(
            lowered,
            model=model,
            given=given,
            root=name,
            prefix=prefix,
            inference=inference,
            rates=rates,
            recorder=prepared.recorder,
        )
        refuse_raising(traced)
        return replace(traced, known=prepared.branches.known.buffers())

    try:
        refuse_scripted(model)
        # Torch, patched or not, is not to be left as it is in the middle: handlers of signals run
        # where forward calls a function, or in its own code.
        with HANDLER_ERRORS, one_trace(), HELD.but_in_scripts():
            return _laid_out_trace(model, given, trace, looks)
    except TraceError as error:
        raise error.with_traceback(users_frames(error.__traceback__)) from None


def _laid_out_trace(
    model: torch.nn.Module, given: TraceInputs, trace: Callable[..., Traced], looks: Looks
) -> Traced:
    """Trace with inputs that lie row-major; where ``forward`` asks for that, as those given do.

    Where it has views of inputs that lie otherwise, torch is asked whether it takes them.
    """
    try:
        traced = steady_trace(model, trace)
    except TraceError:
        if not looks.lines or laid_out(given, looks) is None:
            raise
        traced = None
    viewed = looks.viewed
    own = laid_out(given, looks) if looks.lines or lies_otherwise(given, viewed) else None
    if own is not None and looks.lines:
        traced = steady_trace(model, lambda state: trace(state, own))
    elif own is not None:
        refuse_views(lambda: steady_trace(model, lambda state: trace(state, own)), given)
    assert traced is not None
    return replace(traced, looks=looks if looks.lines else None, viewed=viewed)


def _export(prepared: Prepared) -> ExportedProgram:
    """Have torch's exporter call ``forward``; refuse what the graph would compute otherwise."""
    model, given, told = prepared.model, prepared.given, prepared.told
    functions, recorder, name = prepared.functions, prepared.recorder, type(model).__name__
    try:
        with prepared.patched():
            program = torch.export.export(model, given.args, given.kwargs, strict=False)
            program = _exact(program, prepared, name)
    except Exception as error:
        raise_error_of_handler(error)
        _log.debug("what torch says of model %s", name, exc_info=error)
        with plain_tensors(model):
            found = explain(error, model, given, functions.asks_gradient, recorder.asked)
        raise found.with_traceback(users_frames(error.__traceback__)) from None
    refuse_types(program.graph, told)
    refuse_masks(program.graph, told)
    if not prepared.inference:
        tell_bag_frequencies(program.graph, told)
    return program


def _exact(program: ExportedProgram, prepared: Prepared, name: str) -> ExportedProgram:
    """The graph with what the exporter leaves out: histories, shared memory, writes into views."""
    looks, branches = prepared.looks, prepared.branches
    looks.ask_of_changed()
    if prepared.inference:
        renorms_as_values(program, name, inference=True)
    else:
        refuse_overwritten(program, *prepared.recorder.taken_history())
        detach_ungraded(program, name)
    refuse_shared(program.graph, name)
    name_elements(program, name)
    looks.viewed = viewed_inputs(program)
    program = functional_form(program)
    branches.known.refuse_changed(program.graph_signature.buffers_to_mutate.values())
    branches.tell(prepared.told)
    if not prepared.inference:
        exact_writes(program)
    return program


def _lower(program: ExportedProgram, root: str) -> ExportedProgram:
    """The graph in operations that the device has, with the types that they take."""
    program = _decompose(program, root)
    with quiet():
        _drop_checks(program.graph)
        _keep_statistics(program.graph)
        insert_casts(program.graph)
    refuse_seeded(program.graph.nodes)
    return program


def _decompose(program: ExportedProgram, root: str) -> ExportedProgram:
    """Decompose what has no lowering with torch's own table until nothing changes."""
    known = op_facts()
    _drop_checks(program.graph)
    bound_selections(program.graph_module)
    table = _decompositions()
    refuse_of_nothing(program.graph, root)
    refused, _ = refused_ops(program.graph)
    for _ in range(_MAX_DECOMPOSITION_ROUNDS):
        missing = _missing(program, known)
        rules: dict[Any, Any] = {
            n.target: table[n.target]
            if str(n.target) not in known
            else only_complex(n.target, table[n.target])
            for n in missing
            if n.target in table and may_be_decomposed(n)
        }
        if not rules:
            break
        try:
            with quiet():
                program = program.run_decompositions(rules)
                _drop_checks(program.graph)
        except Exception as error:
            raise_error_of_handler(error)
            if not refused:
                raise
            break  # torch fails on what is refused anyway
    missing = _missing(program, known)
    if refused:
        touched = refused_ops(program.graph)[1]
        missing = [node for node in missing if node not in touched and _gives_tensors(node)]
    if missing or refused:
        plain = [
            (n, NOT_COMPLEX if str(n.target) in known or not may_be_decomposed(n) else "")
            for n in missing
        ]
        raise UnsupportedOps(model=root, ops=describe([*refused.items(), *plain]))
    return program


def _gives_tensors(node: torch.fx.Node) -> bool:
    """False for what only serves the sizes of a result whose shape depends on data."""
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


@cache
def _decompositions() -> Mapping[Any, Any]:
    """Torch's own decompositions; building the table takes longer than tracing a small model."""
    return MappingProxyType(decompositions())


def _drop_checks(graph: torch.fx.Graph) -> None:
    """Drop torch's checks: of shapes and dtypes, which have passed in a static graph, and of data.

    A running program cannot raise: where a matrix is singular, its results are not finite.
    """
    for node in reversed(graph.nodes):
        if str(node.target).startswith(_CHECKS) and not node.users:
            graph.erase_node(node)
        elif node.target is torch.ops.higher_order.with_effects and (
            node.args[1] is torch.ops.aten._linalg_check_errors.default
        ):
            for token in list(node.users):
                token.replace_all_uses_with(node.args[0])
                graph.erase_node(token)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _keep_statistics(graph: torch.fx.Graph) -> None:
    """Running statistics that a batch norm does not train are the ones that went in."""
    target = torch.ops.aten._native_batch_norm_legit_functional.default
    for node in list(graph.nodes):
        if node.target is target and not node.args[5]:
            for user in list(node.users):
                if user.target is operator.getitem and user.args[1] in (3, 4):
                    user.replace_all_uses_with(node.args[user.args[1]])
                    graph.erase_node(user)


def _missing(program: ExportedProgram, known: Mapping[str, Any]) -> list[torch.fx.Node]:
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function"
        and is_operation(node.target)
        and str(node.target) not in (MARKER, COTANGENT, CHECK)
        and (str(node.target) not in known or lacks_complex(node))
    ]
