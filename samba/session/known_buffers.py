"""Buffers whose values were read when a model was traced, and are part of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samba.session.mismatch import GraphMismatch
from samba.support.deviations import some_of
from samba.tracer.traced import Traced

__all__ = ["KnownBuffers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    model: torch.nn.Module
    path: str
    value: torch.Tensor

    def now(self) -> torch.Tensor | None:
        """The model's present buffer."""
        try:
            return self.model.get_buffer(self.path)
        except AttributeError:
            return None

    def is_changed(self) -> bool:
        now = self.now()
        if now is None or now.shape != self.value.shape or now.dtype is not self.value.dtype:
            return True
        plain = now.detach().as_subclass(torch.Tensor)
        return not torch.equal(torch.nan_to_num(plain), torch.nan_to_num(self.value))


class KnownBuffers:
    """Looks whether buffers still have the values that a graph was traced with.

    Args:
        traced: Pairs of a model and one of its traces.
    """

    def __init__(self, traced: Sequence[tuple[torch.nn.Module, Traced]] = ()) -> None:
        self._entries = {
            (id(model), path): _Entry(model=model, path=path, value=value)
            for model, trace in traced
            for path, value in trace.known
        }

    def __bool__(self) -> bool:
        return bool(self._entries)

    def tensors(self) -> list[torch.Tensor]:
        """The models' present buffers."""
        found = [entry.now() for entry in self._entries.values()]
        return [t for t in found if t is not None and not t.is_inference()]

    @property
    def paths(self) -> frozenset[str]:
        """Where the models have them."""
        return frozenset(entry.path for entry in self._entries.values())

    def changed(self) -> list[str]:
        """Paths of those buffers that have other values now."""
        return [entry.path for entry in self._entries.values() if entry.is_changed()]

    def refuse_changed(self, operation: str) -> None:
        """Raise if a buffer has another value now.

        Args:
            operation: What would bring it to the device.

        Raises:
            GraphMismatch: With the buffers' paths.
        """
        if paths := self.changed():
            raise GraphMismatch(
                pef=operation,
                found="the model is not the one that was traced",
                difference=f"forward() takes numbers out of {some_of(paths)} of the model, which "
                "became part of the graph; now there are others",
                advice="Put the old values back, or compile and load the model again.",
            )
