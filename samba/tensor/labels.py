"""Names and dimension labels of a SambaTensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from samba.errors import ArgumentError, described
from samba.support.given import flag_of, text_of, whole_of

if TYPE_CHECKING:
    _Base = torch.Tensor
else:
    _Base = object

_MOST = 100_000
_MEMORIES = ("DDR", "DRAM", "HBM", "HOST")
_A_NAME = "a name, which is a string"
_fast_access: set[str] = set()


class NoSuchDimension(ArgumentError, IndexError):
    """A tensor has no dimension of that number."""


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
    _host_memory: bool | None = None
    _mem_type: str | None = None

    def _label(
        self,
        name: str | None = None,
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        region_name: str | None = None,
    ) -> None:
        """Sets those names and labels that are given."""
        if name is not None:
            if name.__class__ is not str:
                text_of(name, "SambaTensor(name=...)", _A_NAME)
            if name:
                self._sn_name = name
        if region_name is not None and text_of(
            region_name, "SambaTensor(region_name=...)", _A_NAME
        ):
            self._sn_region_name = region_name
        if batch_dim is not None:
            self._batch_dim = self._dim(batch_dim, "SambaTensor(batch_dim=...)")
        if named_dims is not None:
            self._named_dims = self._dims("named_dims", named_dims)
        if sized_dims is not None:
            self._sized_dims = self._dims("sized_dims", sized_dims)

    def _dims(self, what: str, labels: Iterable[str | None]) -> tuple[str | None, ...]:
        where = f"SambaTensor({what}=...)"
        result = tuple(labels) if isinstance(labels, Iterable) else None
        if result is None or not all(label is None or isinstance(label, str) for label in result):
            raise ArgumentError(
                where=where, found=described(labels), wanted="a string or None for each dimension"
            )
        if len(result) != self.dim():
            raise ArgumentError(
                where=where,
                found=f"{len(result)} labels {result}",
                wanted=f"one label or None for each of the {self.dim()} dimensions",
            )
        return result

    def _dim(self, dim: int, where: str) -> int:
        """The number of a dimension; that of a single number may be 0, as in torch."""
        most = max(self.dim(), 1)
        wanted = f"the number of a dimension, from {-most} to {most - 1}"
        if not -most <= whole_of(dim, where, wanted=wanted) < most:
            raise NoSuchDimension(where=where, found=str(dim), wanted=wanted)
        return dim

    @property
    def host_memory(self) -> bool | None:
        """Whether the device should read it from host memory; recorded only."""
        return self._host_memory

    @host_memory.setter
    def host_memory(self, wanted: bool | None) -> None:
        flag = wanted if wanted is None else flag_of(wanted, "SambaTensor.host_memory = ...")
        self._host_memory = flag

    @property
    def mem_type(self) -> str | None:
        """Kind of device memory wished for: ``"DDR"``, ``"DRAM"``, ``"HBM"`` or ``"Host"``, in
        either case, None to leave it to the compiler; recorded only."""
        return self._mem_type

    @mem_type.setter
    def mem_type(self, mem_type: str | None) -> None:
        known = isinstance(mem_type, str) and mem_type.upper() in _MEMORIES
        if mem_type is not None and not known:
            raise ArgumentError(
                where="SambaTensor.mem_type = ...",
                found=described(mem_type),
                wanted="'DDR', 'DRAM', 'HBM', 'Host' or None",
            )
        self._mem_type = mem_type

    @property
    def sn_name(self) -> str:
        """Name on the device; empty while the tensor has none."""
        return self._sn_name

    @sn_name.setter
    def sn_name(self, name: str) -> None:
        self._sn_name = text_of(name, "SambaTensor.sn_name = ...", _A_NAME)

    @property
    def sn_region_name(self) -> str:
        """Name of its place in device memory: ``sn_name`` unless one was set."""
        return self._sn_region_name or self._sn_name

    @sn_region_name.setter
    def sn_region_name(self, name: str) -> None:
        self._sn_region_name = text_of(name, "SambaTensor.sn_region_name = ...", _A_NAME)

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
        number = dim if dim is None else self._dim(dim, "SambaTensor.batch_dim = ...")
        self._batch_dim = number

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
        fast = flag_of(fast, "SambaTensor.fast_access = ...")
        if not self._sn_name:
            self._fast = fast
        elif fast:
            _fast_access.add(self._sn_name)
        else:
            _fast_access.discard(self._sn_name)

    @staticmethod
    def is_fast_access(name: str) -> bool:
        """Whether the tensor of that name was marked ``fast_access``."""
        return text_of(name, "SambaTensor.is_fast_access(name)", _A_NAME) in _fast_access


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
    "_host_memory",
    "_mem_type",
)


def keep_names(source: torch.Tensor, result: torch.Tensor) -> None:
    """Gives ``result`` the names and dimension labels of ``source``."""
    attributes = vars(source)
    for key in _KEPT:
        if key in attributes:
            setattr(result, key, attributes[key])
