"""Buffers whose values were read when a model was traced, and are part of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pef_schema.printable import some_of
from samba.session.check_pef import GraphMismatch
from samba.tracer.errors import DataDependentBranch
from samba.tracer.traced import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    model: torch.nn.Module
    path: str
    name: str
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
        self._entries: dict[tuple[int, str], _Entry] = {}
        for model, trace in traced:
            names = {source.path: source.name for source in trace.sources}
            for path, value in trace.known:
                self._entries[id(model), path] = _Entry(
                    model=model, path=path, name=names.get(path, ""), value=value
                )

    def __bool__(self) -> bool:
        return bool(self._entries)

    def tensors(self) -> list[torch.Tensor]:
        """The models' present buffers."""
        present = [entry.now() for entry in self._entries.values()]
        return [t for t in present if t is not None and not t.is_inference()]

    @property
    def paths(self) -> frozenset[str]:
        """Where the models have them."""
        return frozenset(entry.path for entry in self._entries.values())

    def changed(self) -> list[str]:
        """Paths of those buffers that have other values now."""
        return [entry.path for entry in self._entries.values() if entry.is_changed()]

    def refuse_write(self, name: str, values: torch.Tensor) -> None:
        """Raise if other values are written to a buffer on the device.

        Args:
            name: Name of the tensor that is written.
            values: Its new values.

        Raises:
            GraphMismatch: With the buffer's path.
        """
        for entry in self._entries.values():
            if entry.name == name and not torch.equal(entry.value, values.to(entry.value.dtype)):
                raise _mismatch("a write to device memory", [entry.path])

    def refuse_changed(self, operation: str) -> None:
        """Raise if a buffer has another value now.

        Args:
            operation: What would bring it to the device.

        Raises:
            GraphMismatch: With the buffers' paths.
        """
        if paths := self.changed():
            raise _mismatch(operation, paths)


def refuse_changed_elsewhere(known: Traced, changing: Sequence[Traced]) -> None:
    """Raise if one graph has values of buffers in it that another one changes in its runs.

    Args:
        known: The one graph.
        changing: The others, of the same model.

    Raises:
        DataDependentBranch: With the buffers' paths.
    """
    changed = frozenset[str]().union(*(traced.changed_buffers() for traced in changing))
    if paths := [path for path, _ in known.known if path in changed]:
        raise DataDependentBranch(
            where=f"graph {known.name}",
            reason=f"forward() reads numbers from {some_of(paths)}, and runs of another graph of "
            "this model change them",
            hint="A compiled graph is static. Use torch.where or masking instead.",
        )


def _mismatch(operation: str, paths: list[str]) -> GraphMismatch:
    return GraphMismatch(
        pef=operation,
        found="the model is not the one that was traced",
        difference=f"forward() reads numbers from {some_of(paths)} of the model, which are "
        "constants of the graph; these numbers have changed since",
        advice="Restore the old values, or compile and load the model again.",
    )
