"""Loops over what was hit: ``for expert in hit.nonzero():`` in a mixture of experts.

How often such a loop runs depends on data. While a model is traced it runs once for every entry
of the condition, and what it writes in place is kept only where the entry was hit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F

from samba.tracer.data_dependent.turns import in_turn, tells_hit
from samba.tracer.errors import DataDependentBranch
from samba.tracer.torch_internals import tree_leaves
from samba.tracer.user_code import calling_line, is_read_behind_loop, loop_target

_NONZERO = frozenset({torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere})
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
_WRITES = re.compile(r"__setitem__|__i(?!nvert|nt|ndex|nit|ter)\w+__|(?!_)\w+_")
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Turn:
    """One turn of a loop.

    Args:
        number: Of the turn, among all of the trace.
        hit: bool (): whether it takes place in a run.
    """

    number: int
    hit: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What a turn has made.

    Args:
        tensor: The tensor.
        turn: The turn.
        entry: The entry of the condition that it is the number of; None if it is no such number.
    """

    tensor: torch.Tensor
    turn: _Turn
    entry: int | None = None


class HitLoops:
    """Loops over the entries of a condition that are not zero, as a trace has them.

    Args:
        model: The model; a hook on it is added and removed.

    Raises:
        DataDependentBranch: From ``forward``, if a turn of the loop leaves something behind other
            than by writing into a tensor, or if the entries are listed without such a loop:
            whether a turn takes place is not known.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._hits: dict[int, _Hits] = {}
        self._made: dict[int, _Made] = {}
        self._turn: _Turn | None = None
        self._numbers = count()
        self._left = ""

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch, whose result stays only if the turn takes place.

        Args:
            func: The function.
            args, kwargs: What it is called with.
        """
        hits = self._hits.get(id(args[0])) if args and self._turn is None else None
        if hits and func in _UNBIND and (*args[1:], *kwargs.values()) in ((), (0,)):
            return _Turns(lambda frame: self._start(hits, frame, tensors=True))
        entry = self._entry(args)
        if func is torch.Tensor.__format__ and entry is not None:
            return format(entry, args[1])
        self._used((args, kwargs))
        leaves_more = _trains(func, args, kwargs) or kwargs.get("out") is not None
        leaves_more |= getattr(func, "__name__", "").startswith("_foreach_")
        if self._turn is not None and leaves_more:
            raise _escaped("an iteration of a loop over nonzero() has effects beyond its writes")
        with nullcontext() if self._turn is None else in_turn(self._turn.number):
            result = self._guarded(func, args, kwargs)
        self._note(func, args, kwargs, result)
        return result

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While active, it is noticed if ``forward`` leaves a loop before its end."""
        handle = self._model.register_forward_hook(lambda _, __, result: self._finish(result))
        try:
            yield
        finally:
            handle.remove()

    @property
    def is_idle(self) -> bool:
        """Whether no turn of a loop is being traced, and none has made anything."""
        return self._turn is None and not self._made

    @property
    def is_within_turn(self) -> bool:
        """Whether a turn of a loop is being traced, which may not take place in a run."""
        return self._turn is not None

    def _entry(self, args: tuple[Any, ...]) -> int | None:
        made = self._made.get(id(args[0])) if args else None
        return None if made is None else made.entry

    def _start(self, hits: _Hits, frame: FrameType, *, tensors: bool) -> Iterator[Any]:
        """Begin a loop, whose turns have tensors or numbers."""
        target = loop_target(frame)
        if not tensors and target and is_read_behind_loop(frame, target):
            raise _escaped(f"{target} is used behind a loop over nonzero()")
        unread = {
            name
            for name, value in frame.f_locals.items()
            if type(value) in (list, dict, set) and not is_read_behind_loop(frame, name)
        }
        return self._each(hits, frame, {target, *unread}, tensors=tensors)

    def _each(
        self, hits: _Hits, frame: FrameType, ignored: set[str | None], *, tensors: bool
    ) -> Iterator[Any]:
        """One turn for each entry of the condition."""
        line, ended = calling_line(), False
        before = _held(frame)
        try:
            for entry in range(hits.condition.shape[0]):
                self._turn = None
                turn = self._turn = self._turn_of(hits, entry)
                number: Any = entry
                if tensors:
                    number = torch.tensor(entry).reshape((1,) * (hits.listing.dim() - 1))
                    self._made[id(number)] = _Made(tensor=number, turn=turn, entry=entry)
                yield number
                now = _held(frame)
                for name in (before.keys() & now.keys()) - ignored:
                    if now[name] not in (before[name],):  # NaN is itself there
                        raise _escaped(f"an iteration of a loop over nonzero() changes {name}")
            ended = True
        finally:
            self._left = "" if ended else line
            self._turn = None

    def _turn_of(self, hits: _Hits, entry: int) -> _Turn:
        """The turn for one entry of the condition."""
        turn = next(self._numbers)
        with tells_hit(turn):
            return _Turn(number=turn, hit=hits.condition.select(0, entry).ne(0))

    def _finish(self, results: Any) -> None:
        if self._left:
            raise _escaped("a loop over nonzero() is left before its end", self._left)
        self._used(results)

    def _used(self, values: Any) -> None:
        """Raise if a turn that is over has made one of the values."""
        for leaf in tree_leaves(values) if self._made else ():
            made = self._made.get(id(leaf))
            if made is not None and made.turn is not self._turn:
                raise _escaped(
                    "a result of a loop over nonzero() is used outside the iteration that made it, "
                    "which may not have run"
                )

    def _guarded(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result; what is written in place stays only if this turn takes place."""
        name = getattr(func, "__name__", "").split(".")[0]
        writes = kwargs.get("inplace") is True
        writes |= bool(_WRITES.fullmatch(name)) and name not in _NO_WRITES
        written = args[0] if args else kwargs.get("input")
        if self._turn is None or not writes or not isinstance(written, torch.Tensor):
            return func(*args, **kwargs)
        before = written.clone()
        result = func(*args, **kwargs)
        written.copy_(torch.where(self._turn.hit, written, before))
        return result

    def _note(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Remember conditions that were listed, and what a turn has made."""
        if self._turn is not None:
            given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
            entry = self._entry(args) if func in _SAME_NUMBER else None
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in given:
                    self._made[id(leaf)] = _Made(tensor=leaf, turn=self._turn, entry=entry)
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
            hits = self._hits[id(listing)] = _Hits(listing=listing, condition=condition)
            if listing.dim() == 1:
                # The fake tensors of the exporter have a tolist() that no mode sees.
                turns = _Turns(lambda frame: self._start(hits, frame, tensors=False))
                listing.tolist = lambda: turns  # pyright: ignore[reportAttributeAccessIssue]  # of this one alone


class _Turns:
    """The entries that were hit, for a loop: no list, as how many there are, and which, is data."""

    def __init__(self, start: Callable[[FrameType], Iterator[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        if frame.f_code.co_name == "__iter__" and frame.f_back is not None:
            frame = frame.f_back  # that of the tensor
        if loop_target(frame) is None:
            self._refuse()
        return self._start(frame)

    def _refuse(self, *args: Any) -> NoReturn:
        raise DataDependentBranch(
            where=calling_line(),
            reason="forward() depends on the value of a tensor: the result of nonzero() is used "
            "other than in a loop over it",
            hint="Loop over it directly, `for entry in hits:`, without enumerate, zip, sorted or "
            "len: the number of entries is not known before the graph runs.",
        )

    __len__ = __bool__ = __getitem__ = __contains__ = __eq__ = _refuse
    __add__ = __radd__ = __mul__ = __reversed__ = _refuse
    __hash__ = None  # pyright: ignore[reportAssignmentType]  # as a list


def _held(frame: FrameType) -> dict[str, Any]:
    """Local variables that are plain numbers or texts, and how much there is in the others."""
    held: dict[str, Any] = {}
    for name, value in frame.f_locals.items():
        if type(value) in (bool, int, float, str, bytes):
            held[name] = value
        elif type(value) in (list, dict, set, tuple):
            held[name] = (len(value),)
    return held


def _trains(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a call writes running statistics."""
    if func not in _STATE:
        return False
    given = dict(zip(("input", "mean", "var", "weight", "bias", "training"), args, strict=False))
    given |= kwargs
    return bool(given.get("training", given.get("use_input_stats", True)))


def _escaped(what: str, where: str = "") -> DataDependentBranch:
    return DataDependentBranch(
        where=where or calling_line(),
        reason=f"forward() depends on the value of a tensor: {what}",
        hint="Write into a tensor made before the loop, such as out.index_add_(0, rows, part).",
    )
