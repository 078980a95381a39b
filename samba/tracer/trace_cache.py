"""The trace of a compile, kept for the load that follows it in the same process.

A script that compiles and runs in one process traces its model twice: into the PEF, and to check
that the PEF is the model's. The second trace is the first one, as long as nothing that it depends
on has changed. The second trace compares:

* torch's settings that change a trace, the mode, and the form of the inputs;
* of each module: its identity, class, ``forward``, training flag and hooks;
* of its parameters and buffers: identity, shape, dtype, ``requires_grad`` and SambaFlow names;
* of buffers whose values are part of the graph: these values;
* of its other tensors: identity and version, as their values become constants;
* hooks on parameters, and those of all modules, by identity;
* its plain attributes by value, and all others by identity.

It does not notice changes of anything else that code reads: closures, global variables, attributes
of classes, contents of other objects (a config, say), the environment, installed packages. See
``docs/decisions/0007-trace-cache.md``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pef_schema.program import Role
from samba.tracer.capture import trace_model
from samba.tracer.inputs import Layout, TraceInputs
from samba.tracer.layouts import has_noncontiguous_view, with_layouts
from samba.tracer.preparing import refuse_scripted
from samba.tracer.random_draws import rate_argins
from samba.tracer.torch_internals import (
    accumulation_hooks,
    buffers_of,
    contents_of,
    global_hooks,
    gradient_hooks,
    parameters_of,
    tree_flatten,
)
from samba.tracer.traced import Source, Traced

_PLAIN = (
    *(bool, int, str, bytes, type(None), type(Ellipsis), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_NUMBERS = (float, complex)


class _Unknown(Exception):
    """Whether something has changed cannot be told."""


class _Same:
    """An object that is only equal to itself, and not kept alive."""

    __slots__ = ("_reference",)

    def __init__(self, value: Any) -> None:
        try:
            self._reference = weakref.ref(value)
        except TypeError as error:
            raise _Unknown from error

    def __eq__(self, other: object) -> bool:
        mine = self._reference()
        return isinstance(other, _Same) and mine is not None and mine is other._reference()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # keys are compared, never looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A trace without the caller's inputs, its key, and how they lay if ``forward`` asked."""

    traced: Traced
    key: Any
    layouts: tuple[Layout | None, ...]


_kept: weakref.WeakKeyDictionary[torch.nn.Module, _Kept] = weakref.WeakKeyDictionary()
"""The last trace of each model, until it is asked for: the model is loaded then."""


def keeper_of_trace(
    model: torch.nn.Module, given: TraceInputs, *, inference: bool
) -> Callable[[Traced], None]:
    """What keeps the trace that is about to be made, for :func:`trace_again`.

    Args:
        model, given, inference: As for :func:`samba.tracer.capture.trace_model`.

    Returns:
        Takes the trace, and keeps it unless what it depends on has changed meanwhile.

    Raises:
        TraceError: If a module of the model is scripted.
    """
    _kept.pop(model, None)
    refuse_scripted(model)  # what it holds cannot be asked as of other modules
    before = _key(model, given, inference)

    def keep(traced: Traced) -> None:
        if before is None or before != _key(model, given, inference):
            return
        sources = [replace(s, tensor=None) if s.role is Role.INPUT else s for s in traced.sources]
        _kept[model] = _Kept(
            traced=replace(traced, sources=tuple(sources)),
            key=before,
            layouts=_layouts(traced, given),
        )

    return keep


def trace_again(
    model: torch.nn.Module,
    given: TraceInputs,
    *,
    inference: bool,
    root: str,
    rates: Sequence[bool],
) -> Traced:
    """The graph of a model: the one that was kept, if it fits, else a new trace. None is kept then.

    Args:
        model, given, inference, root, rates: As for :func:`samba.tracer.capture.trace_model`.

    Returns:
        The graph.

    Raises:
        SambaError: As :func:`samba.tracer.capture.trace_model`.
    """
    last = _kept.pop(model, None)
    if (
        last is not None
        and last.traced.name == root
        and rate_argins(last.traced.graph()) == tuple(rates)
        and last.key == _key(model, given, inference)
        and last.layouts == _layouts(last.traced, given)
        and _has_same(model, last.traced.known)
        and not has_noncontiguous_view(given, last.traced.viewed)
    ):
        return replace(last.traced, sources=_with_inputs(last.traced.sources, given))
    return trace_model(model, given, inference=inference, root=root, rates=rates)


def forget_trace(model: torch.nn.Module) -> None:
    """Let :func:`trace_again` trace a model again."""
    _kept.pop(model, None)


def _layouts(traced: Traced, given: TraceInputs) -> tuple[Layout | None, ...]:
    return tuple([entry.layout for entry in with_layouts(given, traced.looks).tensors])


def _has_same(model: torch.nn.Module, known: Sequence[tuple[str, torch.Tensor]]) -> bool:
    """Whether buffers have the values that became part of a graph."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    return all(
        torch.equal(buffers[path].detach().as_subclass(torch.Tensor), value)
        for path, value in known
    )


def _with_inputs(sources: Sequence[Source], given: TraceInputs) -> tuple[Source, ...]:
    tensors = iter(given.tensors)
    return tuple(
        [replace(s, tensor=next(tensors).tensor) if s.role is Role.INPUT else s for s in sources]
    )


def _key(model: torch.nn.Module, given: TraceInputs, inference: bool) -> Any:
    """What a trace depends on; None where that cannot be told."""
    try:
        modules = [_module(module) for module in model.modules()]
        surroundings = _surroundings()
    except (_Unknown, RecursionError):
        return None
    return inference, surroundings, _form(given), modules


def torch_settings() -> tuple[Any, ...]:
    """Settings of torch that change what a model traces to."""
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    )


def _surroundings() -> tuple[Any, ...]:
    """What lies outside of a model and changes what it traces to."""
    return *torch_settings(), _of({kind: dict(hooks) for kind, hooks in global_hooks().items()})


def _form(given: TraceInputs) -> Any:
    leaves, spec = tree_flatten((given.args, given.kwargs))
    shapes = [
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else _of(leaf)
        for leaf in leaves
    ]
    tensors = [(t.name, t.argument, t.place, t.region_name, t.requires_grad) for t in given.tensors]
    return spec, shapes, tensors


def _module(module: torch.nn.Module) -> Any:
    holders = parameters_of(module), buffers_of(module)
    registered = [
        (name, None if tensor is None else _registered(tensor))
        for holder in holders
        for name, tensor in holder.items()
    ]
    state = {k: v for k, v in vars(module).items() if not any(v is holder for holder in holders)}
    return _Same(module), _Same(type(module)), _Same(type(module).forward), registered, _of(state)


def _registered(tensor: torch.Tensor) -> Any:
    """A parameter or buffer without its values: :func:`_has_same` knows those that count."""
    names = getattr(tensor, "sn_name", ""), getattr(tensor, "sn_region_name", "")
    form = tuple(tensor.shape), tensor.dtype, tensor.requires_grad
    # Hooks are kept in a dict of their own, or in none.
    hooks = _of(dict(gradient_hooks(tensor))), _of(dict(accumulation_hooks(tensor)))
    return _Same(tensor), type(tensor), form, names, hooks


def _of(value: Any) -> Any:
    """An attribute: by value where that is plain, else by identity."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in _NUMBERS:
        return kind, repr(value)
    if isinstance(value, dict):
        return kind, [(_of(key), _of(item)) for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        return kind, [_of(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return kind, [_of(item) for item in sorted(value, key=repr)]
    if isinstance(value, torch.Tensor):
        return _registered(value), _contents(value)
    if isinstance(value, np.ndarray):
        raise _Unknown  # it has no version
    return _Same(value() if isinstance(value, weakref.ref) else value)


def _contents(tensor: torch.Tensor) -> Any:
    """What tells that the values of a constant are what they were."""
    if not getattr(tensor, "_has_data", True):
        return None
    try:
        return contents_of(tensor)
    except RuntimeError as error:
        raise _Unknown from error
