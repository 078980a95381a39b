"""Real values for lazy parameters, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from torch import nn

from samba.sambatensor import SambaTensor

__all__ = ["materialize"]

M = TypeVar("M", bound=nn.Module)


@contextmanager
def materialize(model: M) -> Iterator[M]:
    """Gives the lazy parameters and buffers of a model real values inside.

    What nobody changed is emptied again at the end; its values come back the same, unless its
    materializer draws from a generator of its own. What was changed stays.

    Args:
        model: The model.

    Raises:
        NoHostData: A tensor is empty and has no materializer.

    Example:
        >>> from samba.lazy_param import lazy_param
        >>> with lazy_param():
        ...     layer = nn.Linear(3, 2)
        >>> with materialize(layer) as real:
        ...     real.weight.has_data
        True
        >>> layer.weight.has_data
        False
    """
    filled: list[tuple[SambaTensor, int, int]] = []
    try:
        for tensor in chain(model.parameters(), model.buffers()):
            if isinstance(tensor, SambaTensor) and not tensor.has_data:
                tensor.materialize_()
                filled.append((tensor, tensor.data_ptr(), tensor._version))
        yield model
    finally:
        for tensor, memory, version in filled:
            if tensor.data_ptr() == memory and tensor._version == version:
                tensor.clear_data()
