"""What one call of ``forward`` does, as a digest that other processes find again."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from emulator.handler_errors import HANDLER_ERRORS
from emulator.held_signals import HELD
from samba.remembering.call_log import CallLog
from samba.remembering.stand_ins import Incomparable
from samba.remembering.surroundings import unchanged_surroundings
from samba.support.deviations import hearing
from samba.support.late_compiler import late_compiler
from samba.support.tracing import one_trace
from samba.tracer.changed_state import TraceState
from samba.tracer.inputs import TraceInputs
from samba.tracer.preparing import as_traced
from samba.tracer.shown_tensors import samba_names
from samba.tracer.torch_internals import BackwardCFunction, buffers_of, parameters_of, tree_flatten
from samba.tracer.torch_patches import exporting


def forward_digest(model: torch.nn.Module, given: TraceInputs, *, inference: bool) -> str:
    """Call ``forward`` on tensors without values, and digest all that it calls of torch.

    Modules in the order of their calls, functions with their numbers, operations with the origin
    of each tensor, values of constants, results: what is the same in all of that computes the same.
    The model, the generators, and what ``forward`` finds outside of it are as before. If a call has
    left other plain values in the model, it is repeated in the state that it has left, as by a
    trace.

    Args:
        model: The model.
        given: The inputs of the trace.
        inference: The mode of the trace.

    Returns:
        A text.

    Raises:
        Incomparable: If the call does something that no digest has: it changes its own state,
            draws from Python's generators, prints, reads a value, has gradients of its own.
        Exception: What ``forward`` raises.
    """
    state = TraceState(model)
    digest = _digest_in(state, model, given, inference=inference)
    changes = [(change.path, change.before, change.after) for change in state.changes()]
    if not changes:
        return digest
    if (start := state.next_start()) is not None:
        later = TraceState(model, start)
        again = _digest_in(later, model, given, inference=inference)
        if again == digest and not later.changes():
            return f"{digest} {changes}"
    raise Incomparable("forward()", f"changes {', '.join([path for path, _, _ in changes])}")


def _digest_in(
    state: TraceState, model: torch.nn.Module, given: TraceInputs, *, inference: bool
) -> str:
    """The digest of one call in a state."""
    tensors = [t for m in model.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]
    if iterators := state.iterators():
        raise Incomparable(iterators[0], "is an iterator, which cannot be rewound")
    with (
        HANDLER_ERRORS,
        one_trace(),
        HELD.but_in_scripts(),
        unchanged_surroundings(tensors),
        as_traced(model, state, inference=inference),
    ):
        try:
            digest = _digest(model, given)
        finally:
            if state.before is not None:
                state.before.put_back()
    if state.moved:
        raise Incomparable("forward()", "registers or removes hooks")
    if state.drew:
        raise Incomparable("forward()", f"draws from {state.drew}")
    return digest


def _digest(model: torch.nn.Module, given: TraceInputs) -> str:
    """The digest of a call, if it is silent."""
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as warned,
        hearing(muted=True) as deviations,
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        log = _logged(model, given)
    if warned or printed.getvalue():
        said = str(warned[0].message) if warned else printed.getvalue()
        raise Incomparable("forward()", f"prints or warns {said[:100]!r}")
    for deviation, text in deviations:
        log.put(f"{deviation} {text}")
    return log.hexdigest()


def _logged(model: torch.nn.Module, given: TraceInputs) -> CallLog:
    log = CallLog(_names_of_attributes(model))
    stand_ins: dict[int, Any] = {}
    for entry in given.tensors:
        stand_ins.setdefault(
            id(entry.tensor), log.stand_in(entry.tensor, requires_grad=entry.requires_grad)
        )
    args, kwargs = given.call_with([stand_ins[id(entry.tensor)] for entry in given.tensors])
    with (
        samba_names(model, given),
        _stood_in_for(model, log),
        _paths(model, log),
        late_compiler(),
        exporting(),
        log,
        log.functions,
    ):
        result = model(*args, **kwargs)
    leaves, spec = tree_flatten(result)
    log.put(str(spec))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            labels = [(k, v) for k, v in sorted(vars(leaf).items()) if k.startswith("_sn_")]
            log.put(f"{log.place_of(leaf)} {leaf.requires_grad} {labels}")
        else:
            log.put(repr(leaf))
    _refuse_own_gradients([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return log


def _names_of_attributes(model: torch.nn.Module) -> dict[int, str]:
    """Paths of the tensors that are plain attributes, by their identities: constants get names."""
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                names[id(value)] = f"{names.get(id(value), '')} {path}.{name}"
    return names


@contextmanager
def _stood_in_for(model: torch.nn.Module, log: CallLog) -> Iterator[None]:
    """While active, tensors without values stand for parameters and buffers, as in a trace.

    Where code has another way to one of them, such as a list, its values are logged. What
    ``forward`` puts in the place of one is logged.
    """
    modules = list(model.named_modules())
    holders: list[dict[str, Any]] = [
        holder for _, module in modules for holder in (parameters_of(module), buffers_of(module))
    ]
    before = [dict(holder) for holder in holders]
    stand_ins: dict[int, Any] = {}
    for path, module in modules:
        for holder in (parameters_of(module), buffers_of(module)):
            for name, tensor in holder.items():
                if tensor is not None and id(tensor) not in stand_ins:
                    stand_ins[id(tensor)] = log.held(tensor, f"{path}.{name}")
    try:
        for holder in holders:
            holder.update({k: stand_ins[id(t)] for k, t in holder.items() if t is not None})
        yield
        for holder in holders:
            for name, tensor in holder.items():
                log.put(f"{name} {None if tensor is None else log.place_of(tensor)}")
    finally:
        for holder, entries in zip(holders, before, strict=True):
            holder.clear()
            holder.update(entries)


@contextmanager
def _paths(model: torch.nn.Module, log: CallLog) -> Iterator[None]:
    """While active, calls of modules are logged."""
    paths = {id(module): path for path, module in model.named_modules()}

    def enter(module: torch.nn.Module, args: Any) -> None:
        log.put(f"call {paths.get(id(module), type(module).__qualname__)}")

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        log.put("end of call")

    hooks = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_own_gradients(results: list[torch.Tensor]) -> None:
    """Raise if a gradient on the way to results is computed by code of the user's."""
    waiting = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    nodes = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction):
            raise Incomparable(type(node).__name__, "is a gradient of the model's own")
        new = {before for before, _ in node.next_functions if before is not None} - nodes
        nodes |= new
        waiting += new
