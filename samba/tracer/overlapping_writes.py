"""Changes in place that read other elements of the memory that they change.

``x[1:] += x[:-1]`` reads elements that it has perhaps changed already. A graph reads what was there
before. Torch raises where it sees that tensors overlap; elsewhere its result depends on the order
of its loops. So torch is asked: its kernel runs on memory that is laid out in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from samba.tracer.errors import StridedViewError
from samba.tracer.kernel_refusals import real_like
from samba.tracer.nodes import changes_in_place
from samba.tracer.shared_memory import have_common_element
from samba.tracer.torch_internals import outside_of_trace, storage_of
from samba.tracer.user_code import node_line

_MOST_BYTES = 1 << 26
"""Of the memory: torch is not asked of a larger one, and the change is refused."""


def refuse_overlapping(graph: Graph, model: str) -> None:
    """Raise if torch computes something else than a graph, which reads before it changes.

    Args:
        graph: As ``torch.export.export`` gives it, all in one graph.
        model: Name of the model, for errors.

    Raises:
        StridedViewError: If it does, or raises.
    """
    for node, changed in changes_in_place(graph):
        with outside_of_trace():
            read = [source for source in node.all_input_nodes if _shows_others(source, changed)]
            said = _difference(node, changed, read) if read else ""
        if said:
            raise StridedViewError(
                where=node_line(node, f"module {model}"),
                reason=f"{node.target} reads other elements of the memory that it changes: {said}",
                hint="Let it read a copy: x[1:] += x[:-1].clone().",
            )


def _shows_others(source: Node, changed: Node) -> bool:
    """Whether a tensor shows elements that are changed, and not each where it is itself."""
    own, value = source.meta.get("val"), changed.meta.get("val")
    if source is changed or not isinstance(own, torch.Tensor):
        return False
    if not isinstance(value, torch.Tensor) or storage_of(own) != storage_of(value):
        return False
    forms: list[Any] = [(t.shape, t.stride(), t.storage_offset()) for t in (own, value)]
    if any(type(n) is not int for shape, strides, at in forms for n in (*shape, *strides, at)):
        return False
    if forms[0] == forms[1] or own.dtype != value.dtype or own.is_conj() or own.is_neg():
        return False
    return have_common_element(*forms)


def _difference(node: Node, changed: Node, read: Sequence[Node]) -> str:
    """What torch says, or makes otherwise than a graph does; empty for the same."""
    value = changed.meta["val"]
    if value.untyped_storage().nbytes() > _MOST_BYTES:
        return "more than can be tried here"
    size = value.untyped_storage().nbytes() // value.element_size()
    memory = real_like(torch.empty(size, dtype=value.dtype, device="meta"))
    try:
        wanted = _run(node, changed, read, memory.clone(), copies=True)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return ""  # it is not because of the memory
    try:
        found = _run(node, changed, read, memory.clone(), copies=False)
    except RuntimeError as error:
        return " ".join(str(error).split())[:400]
    if torch.equal(wanted.nan_to_num(), found.nan_to_num()):
        return ""
    return "the result depends on the order in which torch goes through it"


def _run(
    node: Node, changed: Node, read: Sequence[Node], memory: torch.Tensor, *, copies: bool
) -> torch.Tensor:
    """The memory after an operation has run on parts of it.

    Args:
        node: The operation.
        changed: The tensor that it changes.
        read: Tensors that it reads in the same memory.
        memory: Stands for the memory.
        copies: Whether it reads copies.
    """

    def real(source: Node) -> Any:
        value: Any = source.meta.get("val")
        if source is not changed and source not in read:
            return real_like(value)
        view = memory.as_strided(value.shape, value.stride(), value.storage_offset())
        return view.clone() if copies and source is not changed else view

    args, kwargs = map_arg((node.args, node.kwargs), real)
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  # an operation
    return memory
