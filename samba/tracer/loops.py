"""Loops over what was hit: ``for expert in hit.nonzero():`` in a mixture of experts.

How often such a loop runs depends on data. While a model is traced it runs once for every entry
of the condition, and what it writes in place is kept only where the entry was hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from samba.tracer.errors import DataDependentBranch
from samba.tracer.names import calling_line

_NONZERO = frozenset({torch.nonzero, torch.Tensor.nonzero})
_WHERE = frozenset({torch.where})
_UNBIND = frozenset({torch.unbind, torch.Tensor.unbind})
_FLAT = frozenset(
    {
        torch.squeeze,
        torch.Tensor.squeeze,
        torch.flatten,
        torch.Tensor.flatten,
        torch.Tensor.reshape,
        torch.Tensor.view,
    }
)
_SAME_NUMBER = frozenset(
    {torch.Tensor.__getitem__, torch.Tensor.squeeze, torch.Tensor.flatten, torch.Tensor.view}
)
_WRITES = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"})
_NO_WRITES = frozenset({"requires_grad_"})
_STATE = frozenset({F.batch_norm, torch.batch_norm, F.instance_norm, torch.instance_norm})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hits:
    """Which entries of a condition are not zero, as torch lists them.

    Args:
        listing: What ``nonzero`` gave: (hits, 1) or (hits,).
        condition: The condition (entries,).
    """

    listing: torch.Tensor
    condition: torch.Tensor


class HitLoops(TorchFunctionMode):
    """While active, loops over the entries of a condition that are not zero can be traced.

    Raises:
        DataDependentBranch: From ``forward``, if a turn of the loop leaves something behind other
            than by writing into a tensor: whether the turn takes place is not known.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hits: dict[int, _Hits] = {}
        self._made: dict[int, tuple[torch.Tensor, int]] = {}
        self._entries: dict[int, int] = {}
        self._turn = 0
        self._turns = 0
        self._hit: torch.Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        hits = self._hits.get(id(args[0])) if args else None
        if hits is not None and self._hit is None:
            if func in _UNBIND and len(args) + len(kwargs) <= 2 and args[1:] in ((), (0,)):
                return self._each(hits, tensors=True)
            if func is torch.Tensor.tolist and hits.listing.dim() == 1:
                return self._each(hits, tensors=False)
        if func is torch.Tensor.__format__ and id(args[0]) in self._entries:
            return format(self._entries[id(args[0])], args[1])
        self._check(func, args, kwargs)
        result = self._guarded(func, args, kwargs)
        self._note(func, args, kwargs, result)
        return result

    def _each(self, hits: _Hits, *, tensors: bool) -> Iterator[Any]:
        """One turn for each entry of the condition."""
        try:
            for entry in range(hits.condition.shape[0]):
                self._turns += 1
                self._turn = self._turns
                self._hit = hits.condition.select(0, entry).ne(0)
                if not tensors:
                    yield entry
                    continue
                number = torch.tensor(entry).reshape((1,) * (hits.listing.dim() - 1))
                self._made[id(number)] = (number, self._turn)
                self._entries[id(number)] = entry
                yield number
        finally:
            self._hit, self._turn = None, 0

    def _check(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if not self._made and self._hit is None:
            return
        for leaf in tree_leaves((args, kwargs)):
            made = self._made.get(id(leaf))
            if made is not None and made[1] != self._turn:
                raise _escaped()
        if self._hit is not None and (func in _STATE or kwargs.get("out") is not None):
            raise _escaped()

    def _guarded(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result; what is written in place stays only if this turn takes place."""
        name = getattr(func, "__name__", "")
        writes = name in _WRITES or kwargs.get("inplace") is True
        writes |= name.endswith("_") and not name.startswith("_") and name not in _NO_WRITES
        if self._hit is None or not writes or not isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        written = args[0]
        before = written.clone()
        result = func(*args, **kwargs)
        written.copy_(torch.where(self._hit, written, before))
        return result

    def _note(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Remember conditions that were listed, and what a turn has made."""
        if self._hit is not None:
            given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
            if func in _SAME_NUMBER and id(args[0]) in self._entries:
                self._entries[id(result)] = self._entries[id(args[0])]
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in given:
                    self._made[id(leaf)] = (leaf, self._turn)
            return
        listing = result
        if func in _NONZERO or (func in _WHERE and len(args) == 1 and not kwargs):
            if isinstance(result, tuple):
                listing = result[0] if len(result) == 1 else None
            condition = args[0]
        elif func in _FLAT and args and id(args[0]) in self._hits:
            condition = self._hits[id(args[0])].condition
            if not isinstance(result, torch.Tensor) or result.dim() != 1:
                return
        else:
            return
        if isinstance(listing, torch.Tensor) and condition.dim() == 1:
            self._hits[id(listing)] = _Hits(listing=listing, condition=condition)


def _escaped() -> DataDependentBranch:
    return DataDependentBranch(
        where=calling_line(),
        reason="forward() depends on the value of a tensor: a result of a loop over nonzero() is "
        "used outside the turn that made it, which may not have taken place",
        hint="Write into a tensor made before the loop, such as out.index_add_(0, rows, part).",
    )
