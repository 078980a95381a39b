"""Capture a torch model as a functional graph of ATen operations.

The model runs once, on fake tensors, under ``torch.export``; decompositions are
limited to what the device cannot lower. Nothing of the model changes. The stages, each of which
hands its result on:

=========  =====================================================================
prepare    what watches the trace, and what is another meanwhile (``preparing``)
export     torch's graph of ``forward``, made exact (``functional``)
lower      the same in operations that the device has (``lowering``)
separate   the forward pass, and the backward passes of the model's own (``gradient_parts``)
convert    nodes with names and source lines (``convert``)
=========  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from emulator.handler_errors import HANDLER_ERRORS
from emulator.held_signals import HELD
from samba.support.naming import root_name
from samba.support.tracing import tracing
from samba.tracer.changed_state import TraceState
from samba.tracer.convert import convert
from samba.tracer.errors import TraceError
from samba.tracer.failure import users_frames
from samba.tracer.functional import export
from samba.tracer.gradient_parts import separated
from samba.tracer.inputs import TraceInputs
from samba.tracer.layouts import Looks, has_noncontiguous_view, laid_out, refuse_views
from samba.tracer.lowering import lower
from samba.tracer.preparing import prepare, refuse_scripted
from samba.tracer.repeated_calls import follow_calls
from samba.tracer.traced import Traced


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
        ChangedAttributes: If ``forward`` changes what is not a buffer, and its results change too.
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
        exported = export(prepared)
        lowered = lower(exported, name)
        parts = separated(lowered, prepared.recorder, model)
        return convert(parts, prepared, root=name, prefix=prefix, rates=rates)

    try:
        refuse_scripted(model)
        # Torch, patched or not, is not to be left as it is in the middle: handlers of signals run
        # where forward calls a function, or in its own code.
        with HANDLER_ERRORS, tracing(), HELD.but_in_scripts():
            return _laid_out_trace(model, given, trace, looks)
    except TraceError as error:
        raise error.with_traceback(users_frames(error.__traceback__)) from None


def _steady_trace(model: torch.nn.Module, trace: Callable[[TraceState], Traced]) -> Traced:
    """Trace a model, and again in the state that ``forward`` leaves, if it is another."""
    state = TraceState(model)
    traced = trace(state)
    if state.changes() or state.drew:
        follow_calls(model, trace, traced, state)
    return traced


def _laid_out_trace(
    model: torch.nn.Module, given: TraceInputs, trace: Callable[..., Traced], looks: Looks
) -> Traced:
    """Trace with inputs that lie row-major; where ``forward`` asks for that, as those given do.

    Where it has views of inputs that lie otherwise, torch is asked whether it takes them.
    """
    try:
        traced = _steady_trace(model, trace)
    except TraceError:
        if not looks.lines or laid_out(given, looks) is None:
            raise
        traced = None
    viewed = looks.viewed
    own = laid_out(given, looks) if looks.lines or has_noncontiguous_view(given, viewed) else None
    if own is not None and looks.lines:
        traced = _steady_trace(model, lambda state: trace(state, own))
    elif own is not None:
        refuse_views(lambda: _steady_trace(model, lambda state: trace(state, own)), given)
    assert traced is not None
    return replace(traced, looks=looks if looks.lines else None, viewed=viewed)
