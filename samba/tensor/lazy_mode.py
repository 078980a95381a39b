"""How tensors are made now: as usual, lazily, or as what stands for them in a traced ``forward``.

While a model is traced its tensors have no values, and torch's exporter knows tensors of its own
class only. What makes a SambaTensor asks here and gives the traced tensor back instead, which has
the names of a SambaTensor for as long (``samba/tracer/shown_tensors.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from zlib import crc32

import torch

from samba.support.slot import Slot
from samba.tensor.recipe import Recipe, empty_with
from samba.tensor.rng import MultithreadedRNG, RandomSettings, fresh_seed

PROVIDERS, _NAMES = 1 << 32, 1 << 33
"""Keep the streams of providers and of names apart from those of parameters."""


class LazyMode:
    """A stretch of lazy building: how random numbers are drawn, and how many streams began.

    Args:
        settings: How they are drawn; None takes a seed from torch's generator.
    """

    def __init__(self, settings: RandomSettings | None = None) -> None:
        self.settings = RandomSettings(seed=fresh_seed()) if settings is None else settings
        self._streams = 0

    def next_stream(self) -> int:
        """Number of a stream that nobody has drawn from."""
        self._streams += 1
        return self._streams - 1

    def recipe(self, made: torch.Tensor) -> Recipe:
        """A recipe that begins with what torch made, and draws from a stream of its own."""
        shape = tuple(made.shape)
        return Recipe(shape, made.dtype, made, self.settings, self.next_stream())


_of_process: Slot[LazyMode] = Slot()
_open: list[LazyMode] = []
"""The modes of open contexts, innermost last."""


def current_mode() -> LazyMode | None:
    """The mode of the innermost open context, or else that of the process; None without any."""
    return _open[-1] if _open else _of_process.value


def set_mode(mode: LazyMode | None) -> None:
    """Let a mode hold for the rest of the process, or none."""
    _of_process.value = mode


@contextmanager
def open_mode() -> Iterator[None]:
    """Tensors are made lazily inside; the settings and streams of a mode around go on."""
    _open.append(current_mode() or LazyMode())
    try:
        yield
    finally:
        _open.pop()


def lazily(cls: type[torch.Tensor], made: torch.Tensor) -> torch.Tensor:
    """An empty tensor in the place of uninitialised memory, where tensors are made lazily.

    Initialisers make such tensors to draw into; this way they draw from a stream too.

    Args:
        cls: The SambaTensor class.
        made: What torch made.

    Returns:
        The empty tensor, or ``made`` outside of the lazy mode.
    """
    mode = current_mode()
    if mode is None:
        return made
    recipe = mode.recipe(made)
    return empty_with(cls, recipe.shape, made.dtype, recipe)


def materializer_rng(name: str) -> MultithreadedRNG:
    """The random number generator for a materializer that takes one.

    Args:
        name: Name of the tensor; in the lazy mode, its stream depends on it and the seed.
    """
    mode = current_mode()
    if mode is None:
        return MultithreadedRNG(RandomSettings(seed=fresh_seed()))
    return MultithreadedRNG(
        mode.settings, (_NAMES, crc32(name.encode()) if name else mode.next_stream())
    )


class Forward(Protocol):
    """What makes SambaTensors while a ``forward`` is traced."""

    def made(self, source: torch.Tensor | None, labels: Mapping[str, Any]) -> torch.Tensor:
        """The tensor that stands for a new SambaTensor.

        Args:
            source: What it is made from; None for an empty one.
            labels: Names and labels that were given, None where they were not.
        """
        ...


class _Traced(threading.local):
    forward: Forward | None = None


_traced = _Traced()


def traced_forward() -> Forward | None:
    """What makes SambaTensors in the ``forward`` that this thread traces, None if it does not."""
    return _traced.forward


def enter_forward(forward: Forward | None) -> Forward | None:
    """Say what makes SambaTensors in this thread from now on.

    Args:
        forward: What does while a ``forward`` is traced; None outside.

    Returns:
        What did before.
    """
    before, _traced.forward = _traced.forward, forward
    return before
