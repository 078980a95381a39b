"""Names and dimension labels of a SambaTensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from samba.errors import ArgumentError

if TYPE_CHECKING:
    _Base = torch.Tensor
else:
    _Base = object

_MOST = 100_000
_fast_access: set[str] = set()


class Labels(_Base):
    """The part of SambaTensor that says what a tensor is called."""

    __slots__ = ()

    _sn_name: str = ""
    _sn_region_name: str = ""
    _batch_dim: int | None = None
    _named_dims: tuple[str | None, ...] | None = None
    _sized_dims: tuple[str | None, ...] | None = None
    _declared_complex: bool | None = None
    _fast: bool = False  # counts only while it has no name
    host_memory: bool | None = None
    """Whether the device should read it from host memory; recorded only."""
    mem_type: str | None = None
    """Kind of device memory wished for, None to leave it to the compiler; recorded only."""

    def _label(
        self,
        name: str | None = None,
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        region_name: str | None = None,
    ) -> None:
        """Sets those names and labels that are given."""
        if name:
            self._sn_name = name
        if region_name:
            self._sn_region_name = region_name
        if batch_dim is not None:
            self._batch_dim = batch_dim
        if named_dims is not None:
            self._named_dims = self._dims("named_dims", named_dims)
        if sized_dims is not None:
            self._sized_dims = self._dims("sized_dims", sized_dims)

    def _dims(self, what: str, labels: Iterable[str | None]) -> tuple[str | None, ...]:
        result = tuple(labels)
        if len(result) != self.dim():
            raise ArgumentError(
                where=f"SambaTensor({what}=...)",
                found=f"{len(result)} labels {result}",
                wanted=f"one label or None for each of the {self.dim()} dimensions",
            )
        return result

    @property
    def sn_name(self) -> str:
        """Name on the device; empty while the tensor has none."""
        return self._sn_name

    @sn_name.setter
    def sn_name(self, name: str) -> None:
        self._sn_name = name

    @property
    def sn_region_name(self) -> str:
        """Name of its place in device memory: ``sn_name`` unless one was set."""
        return self._sn_region_name or self._sn_name

    @sn_region_name.setter
    def sn_region_name(self, name: str) -> None:
        self._sn_region_name = name

    @property
    def sn_grad_name(self) -> str:
        """Name of its gradient; empty while the tensor has no name."""
        return f"{self._sn_name}__grad" if self._sn_name else ""

    @property
    def batch_dim(self) -> int | None:
        """Index of the batch dimension, if it was given."""
        return self._batch_dim

    @batch_dim.setter
    def batch_dim(self, dim: int | None) -> None:
        self._batch_dim = dim

    @property
    def named_dims(self) -> tuple[str | None, ...]:
        """A label or None for each dimension."""
        return self._named_dims or (None,) * self.dim()

    @named_dims.setter
    def named_dims(self, labels: Iterable[str | None] | None) -> None:
        self._named_dims = None if labels is None else self._dims("named_dims", labels)

    @property
    def sized_dims(self) -> tuple[str | None, ...]:
        """The name of a dynamic dimension, or None, for each dimension."""
        return self._sized_dims or (None,) * self.dim()

    @sized_dims.setter
    def sized_dims(self, labels: Iterable[str | None] | None) -> None:
        self._sized_dims = None if labels is None else self._dims("sized_dims", labels)

    @property
    def fast_access(self) -> bool:
        """Whether its host memory is to be pinned; tensors of one name share the answer.

        Tracing marks all inputs, and the gradients of all outputs by their names.

        Example:
            >>> import samba
            >>> x = samba.zeros(2, name="x")
            >>> x.fast_access = True
            >>> samba.SambaTensor.is_fast_access("x")
            True
        """
        return self._sn_name in _fast_access if self._sn_name else self._fast

    @fast_access.setter
    def fast_access(self, fast: bool) -> None:
        if not self._sn_name:
            self._fast = bool(fast)
        elif fast:
            _fast_access.add(self._sn_name)
        else:
            _fast_access.discard(self._sn_name)

    @staticmethod
    def is_fast_access(name: str) -> bool:
        """Whether the tensor of that name was marked ``fast_access``."""
        return name in _fast_access


def mark_fast_access(names: Iterable[str]) -> None:
    """Marks names as ``fast_access``."""
    if len(_fast_access) >= _MOST:
        _fast_access.clear()  # of programs that are long gone, most of them; they are recorded only
    _fast_access.update(names)


def forget_fast_access() -> None:
    """Marks no name any more."""
    _fast_access.clear()


_KEPT = (
    "_sn_name",
    "_sn_region_name",
    "_batch_dim",
    "_named_dims",
    "_sized_dims",
    "host_memory",
    "mem_type",
)


def keep_names(source: torch.Tensor, result: torch.Tensor) -> None:
    """Gives ``result`` the names and dimension labels of ``source``."""
    attributes = vars(source)
    for key in _KEPT:
        if key in attributes:
            setattr(result, key, attributes[key])
