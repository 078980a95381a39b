"""Graphs of a PEF that holds several: what ``session.add_graph`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pef_schema.limits import LIMITS
from samba.errors import ArgumentError
from samba.support.nesting import Constant, leaves

__all__ = ["FwdGraph", "SambaGraph"]


class SambaGraph:
    """A named graph of a PEF; the kinds of graphs derive from it.

    Args:
        name: Its name: ``session.run(graph_name=...)`` runs it by that, and its schedule in the
            PEF has it.

    Raises:
        ArgumentError: The name is empty, too long or not printable.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ArgumentError(
                where=f"{type(self).__name__}(name=...)",
                found=repr(name),
                wanted="a name of printable characters",
            )
        if len(name.encode()) > LIMITS.name:
            raise ArgumentError(
                where=f"{type(self).__name__}(name=...)",
                found=f"a name of {len(name.encode())} bytes",
                wanted=f"at most {LIMITS.name}",
            )
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class FwdGraph(SambaGraph):
    """A forward pass or a part of one: what lies between some tensors and others.

    Several of them may share out one traced model: where one stops, the next starts.

    Args:
        start: Tensors that it starts from: inputs of :func:`samba.utils.trace_multigraph`, or
            outputs of it that another graph stops at. A tensor, a tuple or list, or a dict by
            argument name; None among them is skipped. Their order is that of the graph's inputs.
        stop: Tensors that it computes: outputs of ``trace_multigraph``, in the order in which
            they are outputs of the graph.
        name: Name of the graph.

    Raises:
        ArgumentError: Something among them is not a tensor, there is nothing to compute, or the
            name is none.

    Example:
        >>> import torch, samba
        >>> x = samba.from_torch_tensor(torch.zeros(1, 4), name="x")
        >>> model = samba.from_torch_model_(torch.nn.Linear(4, 2))
        >>> y = samba.trace_multigraph(model, x)
        >>> FwdGraph((x,), y, "linear")
        FwdGraph(name='linear')
        >>> samba.session.reset()
    """

    def __init__(self, start: Any, stop: Any, name: str) -> None:
        super().__init__(name)
        self.start = _tensors(start, f"FwdGraph(start=..., name={name!r})")
        self.stop = tuple(_tensors(stop, f"FwdGraph(stop=..., name={name!r})").values())
        if not self.stop:
            raise ArgumentError(
                where=f"FwdGraph(stop=..., name={name!r})",
                found="no tensors",
                wanted="what trace_multigraph returned, or a part of it",
            )


def _tensors(argument: Any, where: str) -> dict[str | int, torch.Tensor]:
    """Tensors by argument name, or by position where they have none; None left out."""
    if isinstance(argument, torch.Tensor):
        argument = (argument,)
    if not isinstance(argument, (Mapping, tuple, list)):
        raise ArgumentError(
            where=where,
            found=type(argument).__name__,
            wanted="a tensor, a tuple, a list or a dict of tensors",
        )
    pairs: list[tuple[str | int, Any]]
    if isinstance(argument, Mapping):
        pairs = [leaf for key, value in argument.items() for leaf in leaves(str(key), value)]
        pairs = [(key, value) for key, value in pairs if not isinstance(value, Constant)]
    else:
        pairs = list(enumerate(value for _, value in leaves("", argument)))
    bad = [
        f"{type(value).__name__} at {key!r}"
        for key, value in pairs
        if value is not None and not isinstance(value, torch.Tensor)
    ]
    if bad:
        raise ArgumentError(where=where, found=", ".join(bad), wanted="tensors or None")
    return {key: value for key, value in pairs if value is not None}
