"""The second stage of a trace: torch's graph of ``forward``, made exact and functional.

The graph is not traced again where there is no need. ``run_decompositions({})`` runs a whole graph
twice more: once to find out what is changed in place, once to write it down again without. A graph
that changes nothing in place comes out as it was, except for operations such as ``reshape`` that
are a view or a copy, as strides have it. Only these are decomposed here, each form of them once in
a process, by torch itself. What is changed in place is read again where that is all it takes
(:mod:`samba.tracer.in_place`).
"""

from __future__ import annotations

import logging
import operator
from contextlib import ExitStack
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.node import map_arg

from emulator.handler_errors import raise_error_of_handler
from samba.tracer.argument_refusals import refuse_arguments
from samba.tracer.failure import explain, users_frames
from samba.tracer.grad_mode import detach_ungraded, renorms_as_values
from samba.tracer.in_place import (
    Rule,
    refuse_overwritten,
    refuse_returned_inputs,
    refuse_shared,
    replace_writes,
    rule_of,
    writes_apart,
)
from samba.tracer.layouts import viewed_inputs
from samba.tracer.nodes import KEPT_META, changes_in_place, owner_of
from samba.tracer.overlapping_writes import refuse_overlapping
from samba.tracer.preparing import Prepared, plain_tensors
from samba.tracer.shared_memory import HeldTensor, refuse_shared_memory
from samba.tracer.strided_views import exact_writes, name_elements
from samba.tracer.torch_internals import (
    FakeTensorMode,
    OpOverload,
    arguments_of,
    graph_of,
    has_own_kernel,
    is_composite,
    is_mutable,
    is_operation,
    replacing_nodes,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

_log = logging.getLogger("samba")


def export(prepared: Prepared) -> ExportedProgram:
    """Have torch's exporter call ``forward``; refuse what the graph would compute otherwise.

    Args:
        prepared: The model, and what is patched meanwhile.

    Returns:
        The program, without operations in place.

    Raises:
        TraceError: If torch cannot export the model, or its graph is not what ``forward`` computes.
    """
    model, given = prepared.model, prepared.given
    functions, recorder, name = prepared.functions, prepared.recorder, type(model).__name__
    with prepared.seeds.watching():
        try:
            with ExitStack() as stack:
                for patch in prepared.patches:
                    stack.enter_context(patch)
                program = torch.export.export(model, given.args, given.kwargs, strict=False)
                program = _exact(program, prepared, name)
        except Exception as error:
            raise_error_of_handler(error)
            _log.debug("torch's error for model %s", name, exc_info=error)
            with plain_tensors(model):
                reason = explain(error, model, given, functions.asks_gradient, recorder.asked)
            raise reason.with_traceback(users_frames(error.__traceback__)) from None
        refuse_arguments(program.graph, prepared.told, inference=prepared.inference)
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
    refuse_returned_inputs(program.graph, name)
    refuse_overlapping(program.graph, name)
    name_elements(program, name)
    looks.viewed = viewed_inputs(program)
    _refuse_shared_state(program, prepared.model, name)
    program = functional_form(program)
    branches.known.refuse_changed(program.graph_signature.buffers_to_mutate.values())
    branches.tell(prepared.told)
    if not prepared.inference:
        exact_writes(program)
    return program


def _refuse_shared_state(program: ExportedProgram, model: torch.nn.Module, name: str) -> None:
    """Raise if ``forward`` changes a buffer that shares memory with another tensor of the model."""
    changed = {owner_of(tensor).name for _, tensor in changes_in_place(program.graph)}
    held: list[HeldTensor] = []
    for spec in program.graph_signature.input_specs:
        path = spec.target or ""
        match spec.kind:
            case InputKind.PARAMETER:
                tensor = model.get_parameter(path)
            case InputKind.BUFFER:
                tensor = model.get_buffer(path)
            case InputKind.CONSTANT_TENSOR:
                tensor = program.constants[path]
            case _:
                continue
        if isinstance(tensor, torch.Tensor):
            changes = getattr(spec.arg, "name", "") in changed
            held.append(HeldTensor(path=path, tensor=tensor, changes=changes))
    refuse_shared_memory(held, name)


def functional_form(program: ExportedProgram) -> ExportedProgram:
    """The program without operations in place, composite operations kept whole.

    Args:
        program: As ``torch.export.export`` gives it; it may be changed in place.

    Returns:
        What ``program.run_decompositions({})`` returns, up to the names of nodes.
    """
    moving: list[Node] = []
    writing: dict[Node, Rule] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            change = _change(node)
            if isinstance(change, _Change):
                moving += [node] if change is _Change.PARTS else []
            elif change is None:
                return program.run_decompositions({})
            else:
                writing[node] = change
        elif node.op not in ("placeholder", "call_function", "output"):
            return program.run_decompositions({})
    if writing and not writes_apart(program, writing):
        return program.run_decompositions({})
    with replacing_nodes(program):
        if writing:
            replace_writes(program, writing)
        for node in moving:
            _replace(node)
    return program


class _Change(Enum):
    """What becomes of a node."""

    NONE = "it stays"
    PARTS = "its parts take its place"


def _change(node: Node) -> _Change | Rule | None:
    """What becomes of a node; None where that needs to know the rest of the graph."""
    target = node.target
    if not is_operation(target) or not _static(node):
        return None
    return _op_change(target) or rule_of(node)


@cache
def _op_change(target: OpOverload) -> _Change | None:
    if is_mutable(target) or torch.Tag.maybe_aliasing_or_mutating in target.tags:
        return None
    if target.namespace == "samba":
        return _Change.NONE  # none of ours shows or changes a tensor
    if target.namespace != "aten" or target in _DEPENDS or has_own_kernel(target):
        return None
    if not is_composite(target):
        return _Change.NONE
    shows = any(a.alias_info is not None for a in arguments_of(target))
    return _Change.PARTS if shows else None


_DEPENDS = frozenset(
    {
        torch.ops.aten.lift.default,
        torch.ops.aten.lift_fresh.default,
        torch.ops.aten.lift_fresh_copy.default,
        torch.ops.aten.native_batch_norm.default,
    }
)
"""Operations whose functional form depends on what stands around them, or whose schema is wrong."""


def _static(node: Node) -> bool:
    leaves, _ = tree_flatten(node.meta.get("val"))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if any(not isinstance(n, int) for n in (*leaf.shape, *leaf.stride())):
                return False
        elif isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return False
    return True


_forms: dict[Any, torch.fx.Graph] = {}
"""Decompositions that were made: those of one trace, and of later traces of this process."""
_MOST_FORMS = 1000


def _replace(node: Node) -> None:
    """Put the decomposition of a node in its place."""
    leaves, spec = tree_flatten((node.args, node.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, Node)]
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    key = (node.target, str(spec), tuple([_described(leaf) for leaf in leaves]), modes)
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= _MOST_FORMS:
            _forms.clear()
        form = _forms[key] = _decomposed(node.target, leaves, spec)
    own = dict(zip(form.find_nodes(op="placeholder"), inputs, strict=True))
    graph = node.graph
    for part in form.nodes:
        if part.op != "call_function":
            continue
        with graph.inserting_before(node):
            new = own[part] = graph.node_copy(part, own.__getitem__)
        new.meta = {k: v for k, v in node.meta.items() if k in KEPT_META}
        args, kwargs = map_arg((new.args, new.kwargs), lambda n: n.meta["val"])
        new.meta["val"] = new.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  # an operation
    results: Any = map_arg(form.output_node().args[0], own.__getitem__)
    if not isinstance(node.meta["val"], (tuple, list)):
        node.replace_all_uses_with(results[0])
    else:
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, Node):
        return type(leaf), leaf
    value = leaf.meta["val"]
    return Node, tuple(value.shape), value.stride(), value.dtype


def _decomposed(target: Any, leaves: list[Any], spec: Any) -> torch.fx.Graph:
    """The functional form of one operation that changes nothing, a graph of its tensors."""
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]
    values = [leaves[i].meta["val"] for i in places]
    others = [None if isinstance(leaf, Node) else leaf for leaf in leaves]

    def alone(*tensors: torch.Tensor) -> list[torch.Tensor]:
        filled = list(others)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = tree_unflatten(filled, spec)
        return tree_leaves(target(*args, **kwargs))

    with FakeTensorMode():
        stand_ins = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in values]
    graph = graph_of(alone, stand_ins)
    graph.eliminate_dead_code()
    return graph
