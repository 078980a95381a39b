"""The mode in which ``forward`` is traced: torch's functions give way to others where they must.

It is the only one. A function that ``forward`` calls is named, refused or said in other words here;
what is called in its place comes to the same mode again, which then asks loops over what was hit
(:mod:`samba.tracer.data_dependent.loops`), and calls torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from emulator.held_signals import HELD
from samba.sambatensor import SambaTensor
from samba.support.deviations import Deviations
from samba.tensor.dispatch import CASTS, operands
from samba.tensor.labels import keep_names
from samba.tensor.lazy_mode import traced_forward
from samba.tensor.promotion import (
    integers_among_floats,
    lost_in_place,
    mixed_floats,
    promoted,
    widened,
)
from samba.tracer.argument_refusals import float64_text, promotion_text
from samba.tracer.custom_gradients import REGISTERS, GradientRecorder
from samba.tracer.data_dependent.branches import CheckedBranches
from samba.tracer.data_dependent.constant_shapes import with_constant_shapes, with_known_sizes
from samba.tracer.data_dependent.loops import HitLoops
from samba.tracer.errors import DtypeMismatch, TraceError
from samba.tracer.forward_attributes import (
    attribute as attribute_of,
    refuse_constants,
    refuse_gradients,
)
from samba.tracer.layouts import Looks
from samba.tracer.random_draws import DROPOUTS, SeedWatch, keep_dropout
from samba.tracer.rewrite import rewritten
from samba.tracer.torch_internals import differentiates_functions
from samba.tracer.user_code import called_by_this_package, calling_line

_PROPERTIES = (
    *("layout", "shape", "dtype", "device", "requires_grad", "is_leaf", "is_sparse", "is_nested"),
    *("is_quantized", "is_mkldnn"),
)
_METHODS = (
    *("stride", "storage_offset", "size", "dim", "numel", "untyped_storage"),
    *("is_conj", "is_neg", "is_inference"),
)
_DESCRIBES = frozenset(
    {
        *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES),
        *(getattr(torch.Tensor, name) for name in _METHODS),
    }
)
"""Functions that say what a tensor is, which the exporter asks of all that it makes stand-ins for.

They are nine in ten of all calls, and only ``forward`` may get another answer than torch's."""

_MODES = ("samba.tracer.patched_functions", "samba.tracer.data_dependent.loops")
"""Modules through which every function goes that ``forward`` calls."""


class TracedFunctions(TorchFunctionMode):
    """Calls torch's functions as a trace needs them, while it is active.

    Functions that need one floating dtype get their arguments promoted to it, as eager calls
    with SambaTensors do (:mod:`samba.tensor.promotion`); dropout stays at every rate
    (:mod:`samba.tracer.random_draws`); what cannot be exported is said in other words
    (:mod:`samba.tracer.rewrite`) or refused; hooks that
    ``forward`` puts on tensors are recorded (:mod:`samba.tracer.custom_gradients`); attributes that
    reach past the graph have a meaning in it, or are refused
    (:mod:`samba.tracer.forward_attributes`).

    Args:
        model: The model, for errors.
        recorder: Where to record hooks; None to leave them to torch.
        told: What has been said about the model; nothing if None.
        looks: Where to note what ``forward`` asks of how tensors lie in memory.
        branches: What decides branches on values; None to leave them to torch.
        seeds: Where to note what draws from a generator that ``forward`` has seeded.
        loops: Loops over what was hit; None if there are none.
        stand_in: Gives what stands for a parameter or a buffer in the trace; None for others.

    Attributes:
        asks_gradient: The last line that called ``torch.autograd.grad``; empty if none has.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        recorder: GradientRecorder | None = None,
        told: Deviations | None = None,
        looks: Looks | None = None,
        branches: CheckedBranches | None = None,
        seeds: SeedWatch | None = None,
        loops: HitLoops | None = None,
        stand_in: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: None,
    ) -> None:
        super().__init__()
        self._loops, self._is_within, self._stand_in = loops, False, stand_in
        self._model, self._recorder, self._branches = model, recorder, branches
        self._plains: dict[int, tuple[torch.Tensor, SambaTensor]] = {}
        self._deviations = told or Deviations()
        self.looks = looks or Looks()
        self._seeds = seeds or SeedWatch()
        self._told_types: set[torch.dtype | frozenset[torch.dtype]] = set()
        self.asks_gradient = ""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_within and self._loops is not None:
            return self._loops.call(func, args, kwargs)
        HELD.let_through()
        if func in _DESCRIBES and self._is_plain_question():
            self.looks.note(func, args, kwargs)
            return func(*args, **kwargs)
        again = nullcontext() if self._loops is None else self
        with self._seeds.noted(func, args, kwargs), again, self._level(within=True):
            return self._call(func, types, args, kwargs)

    def _is_plain_question(self) -> bool:
        """Whether what describes a tensor is asked outside of ``forward``, loops and transforms."""
        return (
            traced_forward() is None
            and not differentiates_functions()
            and (self._loops is None or self._loops.is_idle)
        )

    @contextmanager
    def _level(self, *, within: bool) -> Iterator[None]:
        before, self._is_within = self._is_within, within
        try:
            yield
        finally:
            self._is_within = before

    def as_in_forward(self) -> AbstractContextManager[None]:
        """While active, what is called counts as called by ``forward`` itself."""
        return self._level(within=False)

    def _call(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        refuse_gradients(func)
        self.looks.note(func, args, kwargs)
        if self._recorder is not None:
            self._recorder.repeated.note(func, args, kwargs)
        if func is torch.autograd.grad and not called_by_this_package(_MODES):
            self.asks_gradient = calling_line()
        if traced_forward() is not None:
            tensors = operands(args, kwargs)
            args, kwargs = self._plain(types, args, kwargs, tensors)
            refuse_constants(self._model, tensors)
        if self._branches is not None:
            if self._branches.requires(func, args, kwargs):
                return None
            answer = self._branches.answer(func, args, kwargs)
            if answer is not None:
                return answer
            args, kwargs = with_known_sizes(func, self._branches.known, args, kwargs)
            if (listed := with_constant_shapes(func, self._branches.known, args, kwargs)) != func:
                return listed(*args, **kwargs)
        attribute = attribute_of(func)
        if attribute is not None:
            return attribute(*args, **kwargs)
        mixed = integers_among_floats(func, args, kwargs)
        if mixed:
            raise TraceError(
                where=calling_line(),
                reason=f"{func.__name__} of {' and '.join(sorted(map(str, mixed)))}, which torch "
                "refuses as well",
                hint="Convert them to one type, such as by .to(weight.dtype).",
            )
        lost = lost_in_place(func, args)
        if lost is not None:
            raise DtypeMismatch(
                where=calling_line(),
                reason=f"{func.__name__}: result type {lost} can't be cast to {args[0].dtype}, as "
                "torch says too",
                hint="Make a new tensor of the wider type instead of changing this one in place.",
            )
        if func in DROPOUTS:
            dropped = keep_dropout(func, args, kwargs)
            if dropped is not None:
                return dropped
        if func in REGISTERS and self._recorder is not None:
            return self._recorder.register(func, *args, **kwargs)
        floats = mixed_floats(func, args, kwargs)
        if floats and torch.float64 not in floats:
            self._tell_promoted(func, floats)
        self._tell_widened(func, args, kwargs)
        if torch.float64 in floats:
            name = getattr(func, "__name__", str(func))
            self._deviations.tell("promoted-float64", float64_text(calling_line(), name))
        args, kwargs = promoted(func, args, kwargs)
        result = rewritten(func)(*args, **kwargs)
        if func is torch.Tensor.item and self._branches is not None:
            self._branches.note_number(args[0], result)
        if args:
            self.looks.note_result(func, args[0], result)
        if func in CASTS and result is not args[0] and vars(args[0]).get("_sn_name"):
            keep_names(args[0], result)
        return result

    def _tell_promoted(self, func: Callable[..., Any], floats: frozenset[torch.dtype]) -> None:
        """Tell of the first line that takes some floating types together."""
        if floats not in self._told_types and all(dtype.itemsize > 1 for dtype in floats):
            self._told_types.add(floats)
            name = getattr(func, "__name__", str(func))
            text = promotion_text(calling_line(), name, floats)
            self._deviations.tell("promoted-types", text)

    def _tell_widened(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Tell of the first line that takes narrow labels or indices; once."""
        narrow = widened(func, args, kwargs)
        if narrow is None or narrow in self._told_types:
            return
        self._told_types.add(narrow)
        self._deviations.tell(
            "narrow-labels",
            f"{calling_line()}: {func.__name__} takes labels or indices of {narrow}, which torch "
            "refuses; they are converted to int64, and negative int16 numbers are read as "
            "unsigned. Pass them as .long() to avoid this",
        )

    def _plain(
        self,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with what stands for the model's tensors, and torch's for SambaTensors.

        The latter are constants of the graph. The exporter forgets ``inference_mode``: what enters
        it is detached.
        """
        known = not any(issubclass(kind, SambaTensor) for kind in types)
        known = known and all(self._stand_in(tensor) is None for tensor in tensors)
        if known and not torch.is_inference_mode_enabled():
            return args, kwargs
        return self._replaced(args), {key: self._replaced(item) for key, item in kwargs.items()}

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            stand_in = self._stand_in(value)
            value = value if stand_in is None else stand_in
        if isinstance(value, SambaTensor):
            value = self._plains.setdefault(id(value), (value.torch(), value))[0]
        if isinstance(value, torch.Tensor):
            ungraded = torch.is_inference_mode_enabled() and value.requires_grad
            return value.detach() if ungraded else value
        if type(value) in (list, tuple):
            return type(value)(self._replaced(item) for item in value)
        return value
