"""What ``forward`` asks of how tensors lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samba.tensor.views import host_of, strides_of
from samba.tracer.names import called_in_users_code, calling_line

_T = torch.Tensor
_STRIDES = frozenset({_T.stride, _T.is_contiguous, _T.dim_order, torch.as_strided, _T.as_strided})
_OFFSETS = frozenset({_T.storage_offset})


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

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a function of torch that is being called, if it asks for strides.

        Args:
            func: The function.
            args, kwargs: Its arguments.
        """
        if func not in _STRIDES and func not in _OFFSETS:
            return
        tensor = args[0] if args else None
        if isinstance(tensor, torch.nn.Parameter) or not called_in_users_code():
            return
        self.lines = tuple(dict.fromkeys((*self.lines, calling_line())))
        by_place = func in (torch.as_strided, _T.as_strided) and (
            len(args) > 3 or kwargs.get("storage_offset") is not None
        )
        self.offsets = self.offsets or func in _OFFSETS or by_place

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
