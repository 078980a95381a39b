"""What ``forward`` asks of how tensors lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from samba.tensor.views import host_of, strides_of
from samba.tracer.names import called_in_users_code, calling_line
from samba.tracer.torch_internals import versions_of

_T = torch.Tensor
_STRIDES = frozenset({_T.stride, _T.is_contiguous, _T.dim_order})
_OFFSETS = frozenset({_T.storage_offset})
_BY_PLACE = MappingProxyType(
    {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
)
"""Functions that name places in memory: where among their arguments the first place is."""
_MAYBE_COPIES = frozenset({"reshape", "reshape_as", "flatten", "ravel", "contiguous", "to"})
"""Functions that return their tensor's memory if its strides allow that, and a copy if not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a tensor lies in memory, as far as ``forward`` asks.

    Args:
        strides: In elements; 0 along axes of one element, where they say nothing.
        offset: Its place in its storage, 0 if ``forward`` does not ask.
        asks_offset: Whether it asks.
        line: The user's lines that ask.
    """

    strides: tuple[int, ...]
    offset: int = 0
    asks_offset: bool = False
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MaybeCopy:
    """A tensor and what is its memory or a copy, with how often they had been changed by then."""

    both: tuple[torch.Tensor, torch.Tensor]
    versions: tuple[int, ...]
    line: str


@dataclass(slots=True)
class Looks:
    """What ``forward`` asks of tensors while it is traced.

    Args:
        lines: The user's lines that ask, in order.
        offsets: Whether one asks for the place of a tensor in its storage, too.
        viewed: Places of the inputs that may have a view that hangs on how they lie.
    """

    lines: tuple[str, ...] = ()
    offsets: bool = False
    viewed: frozenset[int] = frozenset()
    _maybe_copies: list[_MaybeCopy] = field(default_factory=lambda: list[_MaybeCopy]())

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a function of torch that is being called, if it asks for strides.

        Args:
            func: The function.
            args, kwargs: Its arguments.
        """
        # By name: a method, a function and torch.ops.aten's operator are three objects.
        start = _BY_PLACE.get(str(getattr(func, "__name__", "")).partition(".")[0])
        if func not in _STRIDES and func not in _OFFSETS and start is None:
            return
        tensor = args[0] if args else None
        if isinstance(tensor, torch.nn.Parameter) or not called_in_users_code():
            return
        self.lines = tuple(dict.fromkeys((*self.lines, calling_line())))
        by_place = start is not None and (
            len(args) > start or kwargs.get("storage_offset") is not None
        )
        self.offsets = self.offsets or func in _OFFSETS or by_place

    def note_result(self, func: Any, tensor: Any, result: Any) -> None:
        """Note what a function returned, if strides say whether that is a copy.

        Args:
            func: The function.
            tensor: Its first argument.
            result: What it returned.
        """
        if str(getattr(func, "__name__", "")).partition(".")[0] not in _MAYBE_COPIES:
            return
        both = tensor, result
        if isinstance(tensor, torch.nn.Parameter):
            return
        if not all(isinstance(each, torch.Tensor) for each in both):
            return
        versions = versions_of(both)
        if versions is not None:
            self._maybe_copies.append(_MaybeCopy(both=both, versions=versions, line=calling_line()))

    def ask_of_changed(self) -> None:
        """Count as asking what was maybe a copy, where it or its tensor was then changed in place.

        Elsewhere a copy and a view are the same to a graph.
        """
        noted, self._maybe_copies = self._maybe_copies, []
        lines = [each.line for each in noted if each.versions != versions_of(each.both)]
        self.lines = tuple(dict.fromkeys((*self.lines, *lines)))

    def of(self, tensor: torch.Tensor) -> Layout:
        """How a tensor lies, as far as ``forward`` asks.

        Args:
            tensor: The tensor; one without values lies row-major.
        """
        shape = tuple(tensor.shape)
        strides, offset = row_major(shape), 0
        if getattr(tensor, "_has_data", True):
            strides, offset = strides_of(host_of(tensor))
        seen = tuple([s if n > 1 else 0 for n, s in zip(shape, strides, strict=True)])
        return Layout(
            strides=seen,
            offset=offset if self.offsets else 0,
            asks_offset=self.offsets,
            line=", ".join(self.lines),
        )


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor that lies row-major."""
    strides: list[int] = []
    inner = 1
    for size in reversed(shape):
        strides.append(inner)
        inner *= max(size, 1)
    return tuple(reversed(strides))
