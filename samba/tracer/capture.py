"""Capture a torch model as a functional graph of ATen operations.

The model runs once, on fake tensors, under ``torch.export``; decompositions are
limited to what the device cannot lower. Nothing of the model changes. The stages, each of which
hands its result on:

=========  =====================================================================
prepare    what watches the trace, and what is another meanwhile (``preparing``)
export     torch's graph of ``forward``, made exact
lower      the same in operations that the device has (``lowering``)
separate   the forward pass, and the backward passes of the model's own (``gradient_parts``)
convert    nodes with names and source lines (``convert``)
=========  =====================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.export import ExportedProgram

from emulator.handler_errors import HANDLER_ERRORS, raise_error_of_handler
from emulator.held_signals import HELD
from samba.support.naming import root_name
from samba.support.tracing import tracing
from samba.tracer.argument_refusals import refuse_arguments
from samba.tracer.changed_state import TraceState
from samba.tracer.convert import convert
from samba.tracer.errors import TraceError
from samba.tracer.failure import explain, users_frames
from samba.tracer.functional import functional_form
from samba.tracer.grad_mode import detach_ungraded, renorms_as_values
from samba.tracer.gradient_parts import separated
from samba.tracer.inputs import TraceInputs
from samba.tracer.kernel_refusals import refuse_raising
from samba.tracer.layouts import Looks, laid_out, lies_otherwise, refuse_views, viewed_inputs
from samba.tracer.lowering import lower
from samba.tracer.overwritten import refuse_overwritten, refuse_shared
from samba.tracer.preparing import Prepared, plain_tensors, prepare, refuse_scripted
from samba.tracer.repeated_calls import steady_trace
from samba.tracer.strided_views import exact_writes, name_elements
from samba.tracer.traced import Traced

_log = logging.getLogger("samba")


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
        lowered = lower(exported, name)
        parts = separated(lowered, prepared.recorder, model)
        traced = convert(parts, prepared, root=name, prefix=prefix, rates=rates)
        refuse_raising(traced)
        return replace(traced, known=prepared.branches.known.buffers())

    try:
        refuse_scripted(model)
        # Torch, patched or not, is not to be left as it is in the middle: handlers of signals run
        # where forward calls a function, or in its own code.
        with HANDLER_ERRORS, tracing(), HELD.but_in_scripts():
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
        _log.debug("torch's error for model %s", name, exc_info=error)
        with plain_tensors(model):
            reason = explain(error, model, given, functions.asks_gradient, recorder.asked)
        raise reason.with_traceback(users_frames(error.__traceback__)) from None
    refuse_arguments(program.graph, told, inference=prepared.inference)
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
