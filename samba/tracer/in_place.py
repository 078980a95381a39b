"""Changes in place of an exported graph: made operations that return new values, or refused.

* Torch makes a graph functional by running it twice more, which takes longer than the export. What
  writes a whole tensor, as ``relu_`` does and a batch norm that counts its batches, needs no run:
  whoever comes later reads the new value. What writes into a view, or under one that is read later,
  is left to torch.
* Torch refuses a backward pass through what has been changed in place. The functional graph keeps
  all values and could go on. Whether torch can is asked of torch itself: its engine runs over the
  history of what ``forward`` returned for the exporter, on tensors without values.
* A dropout of rate 0 returns the tensor that it was given, and at other rates a new one. The rate
  of a program may change from run to run, so its dropout always makes a new one. A change in place
  that would show the difference is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, Node

from samba.tracer.backward_passes import functions_behind
from samba.tracer.errors import DroppedItself, GradientError, OverwrittenValue, StateGradient
from samba.tracer.marker_ops import MARKER
from samba.tracer.nodes import (
    argument,
    call_like,
    changes_in_place,
    owner_of,
    places_of,
    readers_of_storages,
    written_by,
)
from samba.tracer.random_draws import ZERO_RATE
from samba.tracer.torch_internals import (
    OpOverload,
    arguments_of,
    fake_mode_of,
    has_own_kernel,
    is_made_of_others,
    is_mutable,
    returns_of,
    storage_of,
    tree_map,
)
from samba.tracer.user_code import node_line

_ATEN = torch.ops.aten

Rule = Callable[[Node], tuple[Node, Mapping[Node, Node]]]
"""Takes a node, and makes what computes the same before it: gives what is read in its place, and
the new value of each tensor that it changes."""


def rule_of(node: Node) -> Rule | None:
    """How a node that changes tensors in place, or may, is replaced; None where torch has to.

    Args:
        node: A node that calls an operation.
    """
    target: Any = node.target
    if target in _RULES:
        return _RULES[target] if _RULES[target] is not _norm or _has_rows(node) else None
    return _by_twin if is_mutable(target) and _keeps_form(node) else None


# -- rules ------------------------------------------------------------------------------


def _constant(node: Node) -> tuple[Node, Mapping[Node, Node]]:
    """A constant is copied each time, so that whatever changes it changes the copy."""
    return call_like(node, _ATEN.clone.default, argument(node, 0)), {}


def _detached(node: Node) -> tuple[Node, Mapping[Node, Node]]:
    """Where there is a history, ``detach_ungraded`` has ended it; else there is none to end."""
    return argument(node, 0), {}


def _dropped_out(node: Node) -> tuple[Node, Mapping[Node, Node]]:
    """As ``dropout`` in ``torch/_decomp/decompositions.py``."""
    values, rate, training = (argument(node, place) for place in range(3))
    if not training or rate == 0:
        return call_like(node, _ATEN.clone.default, values), {}
    both = call_like(node, _ATEN.native_dropout.default, values, rate, training)
    return call_like(node, operator.getitem, both, 0), {}


def _norm(node: Node) -> tuple[Node, Mapping[Node, Node]]:
    """As ``native_batch_norm_decomposition`` in ``torch/_decomp/decompositions.py``."""
    values, weight, bias, mean, var, training, momentum, eps = (
        argument(node, place) for place in range(8)
    )
    if mean is None:
        target, rest = _ATEN._native_batch_norm_legit.no_stats, (training, momentum, eps)
    elif training:
        target = _ATEN._native_batch_norm_legit_functional.default
        rest = (mean, var, training, momentum, eps)
    else:
        target = _ATEN._native_batch_norm_legit_no_training.default
        rest = (mean, var, momentum, eps)
    results = call_like(node, target, values, weight, bias, *rest)
    out = call_like(node, operator.getitem, results, 0)
    if mean is None or not training:
        return out, {}
    new_mean, new_var = (call_like(node, operator.getitem, results, place) for place in (3, 4))
    return out, {mean: _of_dtype(mean, new_mean), var: _of_dtype(var, new_var)}


def _of_dtype(old: Node, new: Node) -> Node:
    """What is written into a tensor has its dtype; torch's fake kernel may say float32."""
    dtype = old.meta["val"].dtype
    if new.meta["val"].dtype == dtype:
        return new
    return call_like(new, _ATEN._to_copy.default, new, dtype=dtype, layout=torch.strided)


def _has_rows(node: Node) -> bool:
    """Whether a batch norm is one as any other: torch takes empty batches another way."""
    return argument(node, 0).meta["val"].numel() > 0


def _by_twin(node: Node) -> tuple[Node, Mapping[Node, Node]]:
    """An operation in place returns what it has written, and so does its twin."""
    new = call_like(node, _twin(node.target), *node.args, **node.kwargs)
    return new, {argument(node, 0): new}


_RULES: Mapping[Any, Rule] = {
    _ATEN.lift_fresh_copy.default: _constant,
    _ATEN.detach_.default: _detached,
    _ATEN.dropout.default: _dropped_out,
    _ATEN.batch_norm.default: _norm,
}


_NO_TWIN = frozenset({torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded})


@cache
def _twin(target: Any) -> Any:
    """The operation that computes what one in place writes, with the same arguments; None if none.

    Random numbers are drawn by operations of other names, and what changes the form of a tensor
    has no new value. That of a copy would be another tensor, which may be changed later.
    """
    name, overload = str(target).split(".")[1:]
    twin = getattr(getattr(_ATEN, name.removesuffix("_"), None), overload, None)
    if target.namespace != "aten" or not name.endswith("_") or twin is None:
        return None
    if target is _ATEN.copy_.default or _NO_TWIN & set(target.tags):
        return None
    if any(is_made_of_others(op) or has_own_kernel(op) for op in (target, twin)):
        return None
    written = [a.name for a in arguments_of(target) if a.alias_info is not None]
    if written != [arguments_of(target)[0].name] or is_mutable(twin) or _may_show(twin):
        return None
    same = [[(a.name, str(a.type)) for a in arguments_of(op)] for op in (target, twin)]
    return twin if same[0] == same[1] and len(returns_of(target)) == 1 else None


def _may_show(op: OpOverload) -> bool:
    return any(r.alias_info is not None for r in returns_of(op))


def _keeps_form(node: Node) -> bool:
    """Whether an operation in place has a twin whose result has the form of what it changes."""
    twin, before = _twin(node.target), argument(node, 0).meta["val"]
    if twin is None:
        return False
    args, kwargs = tree_map(
        lambda leaf: leaf.meta["val"] if isinstance(leaf, Node) else leaf,
        (node.args, dict(node.kwargs)),
    )
    mode = fake_mode_of(before)
    if mode is None:
        return False
    with mode:
        after = twin(*args, **kwargs)
    return (after.shape, after.dtype) == (before.shape, before.dtype)


# -- memory -----------------------------------------------------------------------------


def writes_apart(program: ExportedProgram, rules: Mapping[Node, Rule]) -> bool:
    """Whether new values can stand for all that nodes write.

    Each write is of a whole tensor, whose views are not read later, and which is the program's own
    or a buffer that is not a result.

    Args:
        program: The exported program.
        rules: Its nodes that may write, each with how it is replaced.
    """
    graph = program.graph
    places, shown = places_of(graph), _nodes_by_memory(graph)
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    results = {_memory_of(node) for node in graph.output_node().all_input_nodes}
    whole = {nodes[0] for nodes in shown.values()}
    for node in rules:
        for tensor in _written(node):
            memory = _memory_of(tensor)
            owner = shown[memory][0]
            if owner.op == "placeholder" and (
                kinds[owner.name] is not InputKind.BUFFER or memory in results
            ):
                return False
            place = places[node]
            views = [v for v in shown[memory] if v not in whole and places[v] < place]
            later = [user for view in views for user in view.users if places[user] > place]
            if tensor not in whole or later:
                return False
            whole.add(node)  # the tensor itself, if this is an operation in place
    return True


def _written(node: Node) -> list[Node]:
    if node.target is _ATEN.batch_norm.default:
        statistics = argument(node, 3), argument(node, 4)
        return [tensor for tensor in statistics if argument(node, 5) and tensor is not None]
    return [] if node.target is _ATEN.detach_.default else list(written_by(node))


def _nodes_by_memory(graph: Graph) -> dict[int, list[Node]]:
    """The nodes that show each memory, its owner first."""
    shown: dict[int, list[Node]] = {}
    for node in graph.nodes:
        is_unread = node.op == "placeholder" and not node.users  # another name of one that is
        if isinstance(node.meta.get("val"), torch.Tensor) and not is_unread:
            shown.setdefault(_memory_of(node), []).append(node)
    return shown


def _memory_of(node: Node) -> int:
    value = node.meta.get("val")
    return storage_of(value) if isinstance(value, torch.Tensor) else 0


def replace_writes(program: ExportedProgram, rules: Mapping[Node, Rule]) -> None:
    """Put what computes the same in the place of nodes that write, and return new buffers.

    Args:
        program: The exported program, which is changed.
        rules: Its nodes that may write, each with how it is replaced, in their order.
    """
    graph, signature = program.graph, program.graph_signature
    places = places_of(graph)
    owners: dict[Node, Node] = {}
    newest: dict[str, Node] = {}
    for node, rule in rules.items():
        with graph.inserting_before(node):
            read, written = rule(node)
        node.replace_all_uses_with(read)
        for tensor, new in written.items():
            tensor.replace_all_uses_with(new, partial(_is_later, places, node))
            owners[new] = owner = owners.get(tensor, tensor)
            newest[owner.name] = new
        graph.erase_node(node)
    buffers = [
        (newest[spec.arg.name], spec.target)
        for spec in signature.input_specs
        if spec.kind is InputKind.BUFFER and spec.arg.name in newest
    ]
    signature.output_specs[:0] = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(name=new.name), target)
        for new, target in buffers
    ]
    (results,) = graph.output_node().args
    assert isinstance(results, tuple)
    graph.output_node().args = ((*[new for new, _ in buffers], *results),)


def _is_later(places: Mapping[Node, int], node: Node, user: Node) -> bool:
    """Whether a node stands behind another: no new one does, it is where what it replaces was."""
    return places.get(user, 0) > places[node]


_MODIFIED = "modified by an inplace operation"
_NATIVE = torch.ops.aten.native_dropout.default
_ONES = torch.ops.aten.new_ones.default


def refuse_overwritten(
    program: ExportedProgram,
    returned: Sequence[torch.Tensor],
    graded: Mapping[str, torch.Tensor],
) -> None:
    """Refuse what torch refuses in ``loss.backward()``, of this step or of the next one.

    Args:
        program: As ``torch.export.export`` gives it.
        returned: What ``forward`` returned while it was traced, with its history.
        graded: Buffers that have a history after it, by name.

    Raises:
        OverwrittenValue: If a value that a gradient reads was changed in place.
        StateGradient: If a gradient passes through such a buffer.
    """
    ends = [t for t in returned if t.requires_grad and t.is_floating_point()]
    ends = [t for t in ends if t.dim() == 0] or ends
    changes = _changes(program.graph)
    if not ends or not changes:
        return
    history = set(functions_behind(ends))
    leaves = {id(t): t for t in ends if t.grad_fn is None}
    leaves |= {id(f.variable): f.variable for f in history if hasattr(f, "variable")}
    buffers = [name for name, buffer in graded.items() if buffer.grad_fn in history]
    if buffers:
        raise StateGradient(where=", ".join(changes), buffers=buffers)
    try:
        torch.autograd.grad(ends, list(leaves.values()), [torch.ones_like(t) for t in ends])
    except Exception as error:
        if _MODIFIED not in str(error):
            return  # what the engine cannot do without values; the device differentiates by itself
        raise OverwrittenValue(lines=changes, reason=str(error).partition(" Hint: ")[0]) from None


def _changes(graph: Graph) -> tuple[str, ...]:
    """Lines that change in place what something else reads."""
    changed = list(changes_in_place(graph))
    readers = readers_of_storages(graph) if changed else {}
    lines = [
        f"{node_line(node, 'forward()')} ({node.target})"
        for node, value in changed
        if readers[storage_of(value.meta["val"])] > 1
    ]
    return tuple(dict.fromkeys(lines))


# -- a dropout that returns what it was given -------------------------------------------


def refuse_shared(graph: Graph, model: str) -> None:
    """Refuse a change of a tensor, or of what dropout made of it, after which the other is read.

    Args:
        graph: As ``torch.export.export`` gives it, all in one graph.
        model: Name of the model, for errors.

    Raises:
        DroppedItself: If there is such a change behind a dropout that is traced at rate 0.
    """
    dropped = list(_dropped_at_zero(graph))
    if not dropped:
        return
    place = places_of(graph)
    last_read: dict[Node, int] = {}
    for node in graph.nodes:
        last_read.update({owner_of(source): place[node] for source in node.all_input_nodes})
    for change, changed in changes_in_place(graph):
        for source, result in dropped:
            sides = {owner_of(source): result, owner_of(result): source}
            other = sides.get(owner_of(changed))
            if other is None or place[change] < place[result]:
                continue
            # What torch was given, a buffer or an input, outlives forward.
            owner = owner_of(other)
            if owner.op == "placeholder" or last_read.get(owner, 0) > place[change]:
                where = node_line(change, f"module {model}")
                raise DroppedItself(where=where, operation=str(change.target))


def refuse_returned_inputs(graph: Graph, model: str) -> None:
    """Refuse a change of what an autograd function or a backward hook has passed on, as torch does.

    Args:
        graph: As ``torch.export.export`` gives it, all in one graph.
        model: Name of the model, for errors.

    Raises:
        GradientError: If a result of one is its input, or a view of it, and is changed in place.
    """
    for change, changed in changes_in_place(graph):
        part = owner_of(changed)
        marker = part.args[0] if part.target is operator.getitem else None
        if not isinstance(marker, Node) or str(marker.target) != MARKER:
            continue
        results, inputs, _ = cast("tuple[list[Node], list[Node], int]", marker.args)
        if _memory_of(results[cast(int, part.args[1])]) in map(_memory_of, inputs):
            raise GradientError(
                where=node_line(change, f"module {model}"),
                reason=f"{change.target} changes what an autograd function or a backward hook has "
                "passed on, which is its input or a view of it. Torch raises this, too",
                hint="Change a copy of it (t.clone()), or make a new tensor.",
                deviation="function-in-place",
            )


def _dropped_at_zero(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """What dropouts are given and make; those of channels multiply by what is dropped of ones."""
    for node in graph.find_nodes(op="call_function", target=_NATIVE):
        if node.args[1] != ZERO_RATE:
            continue
        source = node.args[0]
        for part in node.users:
            if part.target is not operator.getitem or part.args[1] != 0:
                continue
            if source.target is not _ONES:
                yield source, part
                continue
            for product in part.users:
                yield product.args[0], product
