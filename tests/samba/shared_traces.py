"""One trace for all models that are alike: tests of what comes after a trace share it.

Torch's exporter takes some tenths of a second for a small model, and most tests of the session make
the same few models. A model that is named here gets the graph of the first one like it, with its
own tensors: of the same classes, settings, names, shapes and types, for inputs of the same form.
``samba.tracer.trace_cache`` says what else a trace depends on, and is asked for that. `make
test-all` traces each model (``tests/conftest.py`` says how it is known).
"""

from __future__ import annotations

import logging
import os
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakSet

import pytest
import torch
from torch import nn

from pef_schema.program import Role
from samba.directives import fusion_of
from samba.session import evaluation
from samba.session.multigraph import builder
from samba.tracer import trace_cache
from samba.tracer.capture import trace_model
from samba.tracer.inputs import Layout, TraceInputs, collect_inputs
from samba.tracer.layouts import has_noncontiguous_view
from samba.tracer.torch_internals import accumulation_hooks, gradient_hooks
from samba.tracer.traced import Source, Traced

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size),
    *(type, types.FunctionType, types.BuiltinFunctionType),
)
"""Attributes of modules that are compared by value, or by identity where they have none."""

_OF_THE_SESSION = {
    "output_tensors",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
}
"""What ``trace_graph`` leaves in a model, and no ``forward`` of these tests reads."""


class _Own(Exception):
    """What a trace of a model depends on cannot be compared with another model's."""


@dataclass(frozen=True, kw_only=True)
class _First:
    """The graph of the first of models that are alike, and how its inputs lay."""

    asked: Any
    traced: Traced
    layouts: tuple[Layout | None, ...]


Model = TypeVar("Model", bound=nn.Module)

_sharing: WeakSet[nn.Module] = WeakSet()
_firsts: list[_First] = []


def share_trace(model: Model) -> Model:
    """Let a model have the graph of another one that is like it, inside :func:`sharing_traces`.

    Args:
        model: The model. What its ``forward`` reads is its own, or never changes.

    Returns:
        The same model.
    """
    _sharing.add(model)
    return model


@contextmanager
def sharing_traces() -> Iterator[None]:
    """Inside, models that are alike are traced once for each form of inputs."""
    with _tracing_by(_shared):
        yield


@contextmanager
def own_traces() -> Iterator[None]:
    """Inside, each model is traced, for tests of what a trace does to a model and the files."""
    with _tracing_by(trace_model):
        yield


@contextmanager
def _tracing_by(function: Callable[..., Traced]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (trace_cache, evaluation, builder):
            patch.setattr(module, "trace_model", function)
        yield


def trace(model: nn.Module, inputs: Any, **options: Any) -> Traced:
    """Trace a model as ``tests.tracing.trace`` does, or take the graph of one that is like it."""
    return _shared(share_trace(model), collect_inputs(model, inputs), **options)


def _shared(model: nn.Module, given: TraceInputs, **options: Any) -> Traced:
    """``trace_model``; a model whose trace logs a line is traced each time."""
    shares = model in _sharing and os.environ.get("XLA_FLAGS")
    asked = _asked(model, given, options) if shares else None
    if asked is None:
        return trace_model(model, given, **options)
    for first in _firsts:
        if (
            first.asked == asked
            and first.layouts == trace_cache._layouts(first.traced, given)
            and trace_cache._has_same(model, first.traced.known)
            and not has_noncontiguous_view(given, first.traced.viewed)
        ):
            return _with_tensors(first.traced, model, given)
    with _logged() as records:
        traced = trace_model(model, given, **options)
    if not records and asked == _asked(model, given, options):
        layouts = trace_cache._layouts(traced, given)
        _firsts.append(_First(asked=asked, traced=_without_tensors(traced), layouts=layouts))
    return traced


def _asked(model: nn.Module, given: TraceInputs, options: dict[str, Any]) -> Any:
    """What a trace depends on, with no word on which model it is; None if it is only its own."""
    seen: dict[int, int] = {}
    try:
        modules = [_module(module, seen) for module in model.modules()]
        surroundings = trace_cache._surroundings(), fusion_of()
        return modules, trace_cache._form(given), options, surroundings
    except (_Own, trace_cache._Unknown):
        return None


def _module(module: nn.Module, seen: dict[int, int]) -> Any:
    state = {name: value for name, value in vars(module).items() if name not in _OF_THE_SESSION}
    registered = [
        (
            name,
            tensor if tensor is None else (seen.setdefault(id(tensor), len(seen)), _form(tensor)),
        )
        for holder in ("_parameters", "_buffers")
        for name, tensor in state.pop(holder).items()
    ]
    kind = type(module)
    return kind, kind.forward, fusion_of(module), registered, _value(state, seen)


def _value(value: Any, seen: dict[int, int]) -> Any:
    """An attribute: modules by the order in which they are met."""
    if isinstance(value, nn.Module):
        return "module", seen.setdefault(id(value), len(seen))
    if isinstance(value, dict):
        return type(value), [(_value(k, seen), _value(v, seen)) for k, v in value.items()]
    if isinstance(value, tuple | list):
        return type(value), [_value(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    if not isinstance(value, _PLAIN):
        raise _Own  # a tensor too: its values may be part of the graph
    return type(value), repr(value) if isinstance(value, float | complex) else value


def _form(tensor: torch.Tensor) -> Any:
    if gradient_hooks(tensor) or accumulation_hooks(tensor):
        raise _Own
    names = getattr(tensor, "sn_name", ""), getattr(tensor, "sn_region_name", "")
    return type(tensor), tuple(tensor.shape), tensor.dtype, tensor.requires_grad, names


def _with_tensors(traced: Traced, model: nn.Module, given: TraceInputs) -> Traced:
    """A graph with the tensors of a model, and its inputs."""
    states = dict(model.named_parameters(remove_duplicate=False))
    states |= dict(model.named_buffers(remove_duplicate=False))
    inputs = iter(given.tensors)

    def tensor_of(source: Source) -> torch.Tensor | None:
        if source.role is Role.INPUT:
            return next(inputs).tensor
        return states.get(source.path, source.tensor)

    return replace(
        traced,
        sources=tuple([replace(source, tensor=tensor_of(source)) for source in traced.sources]),
        parameter_ids=frozenset(map(id, model.parameters())),
    )


def _without_tensors(traced: Traced) -> Traced:
    """A graph that keeps no model alive."""
    ours = (Role.INPUT, Role.WEIGHT, Role.BUFFER)
    sources = [replace(s, tensor=None) if s.role in ours else s for s in traced.sources]
    return replace(traced, sources=tuple(sources), parameter_ids=frozenset())


@contextmanager
def _logged() -> Iterator[Sequence[logging.LogRecord]]:
    """What the project logs inside."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("samba")
    log.addHandler(handler)
    try:
        yield records
    finally:
        log.removeHandler(handler)
