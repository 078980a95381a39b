"""The trace of a compile, kept for the same process.

A script that compiles and runs in one process traces its model twice: into the PEF, and to check
that the PEF is the model's. The second trace is the first one, as long as nothing that it
depends on has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_flatten

from pef_schema.program import Role
from samba.tracer.capture import trace_model
from samba.tracer.convert import rate_argins
from samba.tracer.inputs import TraceInputs
from samba.tracer.state import Undescribed, describe, surroundings
from samba.tracer.traced import Source, Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A trace without the caller's inputs, and what it depends on."""

    traced: Traced
    state: Any


_kept: WeakKeyDictionary[torch.nn.Module, _Kept] = WeakKeyDictionary()
"""The last trace of each model, until it is asked for: the model is loaded then."""


def trace_and_keep(model: torch.nn.Module, given: TraceInputs, *, inference: bool) -> Traced:
    """Trace a model and remember the graph for :func:`trace_again`.

    Args:
        model, given, inference: As for :func:`samba.tracer.capture.trace_model`.

    Returns:
        The graph.

    Raises:
        SambaError: As :func:`samba.tracer.capture.trace_model`.
    """
    _kept.pop(model, None)
    before = _state(model, given, inference)
    traced = trace_model(model, given, inference=inference)
    if before is not None and before == _state(model, given, inference):
        sources = [replace(s, tensor=None) if s.role is Role.INPUT else s for s in traced.sources]
        _kept[model] = _Kept(traced=replace(traced, sources=tuple(sources)), state=before)
    return traced


def trace_again(
    model: torch.nn.Module,
    given: TraceInputs,
    *,
    inference: bool,
    root: str,
    rates: Sequence[bool],
) -> Traced:
    """Trace a model, unless that is known to give the graph that was kept; it is kept no longer.

    Args:
        model, given, inference, root, rates: As for :func:`samba.tracer.capture.trace_model`.

    Returns:
        The graph.

    Raises:
        SambaError: As :func:`samba.tracer.capture.trace_model`.
    """
    kept = _kept.pop(model, None)
    if (
        kept is not None
        and kept.traced.name == root
        and rate_argins(kept.traced.graph()) == tuple(rates)
        and kept.state == _state(model, given, inference)
    ):
        return replace(kept.traced, sources=_with_inputs(kept.traced, given))
    return trace_model(model, given, inference=inference, root=root, rates=rates)


def _with_inputs(traced: Traced, given: TraceInputs) -> tuple[Source, ...]:
    tensors = iter(given.tensors)
    return tuple(
        [
            replace(s, tensor=next(tensors).tensor) if s.role is Role.INPUT else s
            for s in traced.sources
        ]
    )


def _state(model: torch.nn.Module, given: TraceInputs, inference: bool) -> Any:
    """What a trace depends on; None where that cannot be told."""
    try:
        return (
            inference,
            surroundings(),
            _form(given),
            describe(model),
        )
    except (Undescribed, RecursionError):
        return None


def _form(given: TraceInputs) -> Any:
    leaves, spec = tree_flatten((given.args, given.kwargs))
    shapes = [None if t is None else (tuple(t.shape), t.dtype) for t in leaves]
    tensors = [(t.name, t.argument, t.place, t.region_name, t.requires_grad) for t in given.tensors]
    return spec, shapes, tensors
