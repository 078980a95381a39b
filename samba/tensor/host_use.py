"""Which host tensors have a twin on the device, and that a script has used one of them.

Torch functions on SambaParameters pass through ``dispatch``, and plain aliases of their memory
through ``data``: both leave a note here for those tensors that a loaded program has on its
device. They look at no value; the session of the program does that at its next run.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Protocol

import torch

from samba.tensor.views import data_of, host_of, set_data

_MANY = 64
"""Aliases of one tensor that are kept before those without another owner are dropped."""


class Twins(Protocol):
    """An owner of host tensors that are on a device, too."""

    def used(self, tensor: torch.Tensor, operation: str) -> None:
        """A script uses one of them on the host."""
        ...

    def lacks_gradient(self, tensor: torch.Tensor, reader: str) -> None:
        """A script has found no gradient of one of them on the host."""
        ...

    def same(self, tensor: torch.Tensor) -> None:
        """Host and device have the same values of one of them now."""
        ...


class HostUse:
    """Notes about one host tensor.

    Args:
        tensor: The tensor.
        owner: Who has it on a device; not kept alive.
    """

    __slots__ = ("aliases", "owner", "version")

    def __init__(self, tensor: torch.Tensor, owner: Twins) -> None:
        self.owner = weakref.ref(owner)
        self.version = version_of(tensor)
        self.aliases: list[torch.Tensor] = []

    def written(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has been written since the last look, as far as torch counts it."""
        return self.version != version_of(tensor) or any(a._version for a in self.aliases)

    def looked(self, tensor: torch.Tensor) -> None:
        """From now on only later writes count."""
        self.version = version_of(tensor)
        self.aliases = []


twinned: dict[int, HostUse] = {}
"""Notes by identity of the host tensor; whoever enters one takes it out again."""


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written in place; 0 of one for which torch keeps no count."""
    with torch._C.DisableTorchFunctionSubclass():
        return 0 if tensor.is_inference() else tensor._version


def note_use(
    tensors: Iterable[torch.Tensor], operation: str, overwritten: torch.Tensor | None = None
) -> None:
    """Note that a torch function takes some tensors.

    Args:
        tensors: Its operands.
        operation: Its name.
        overwritten: One of them of which it replaces all values.
    """
    for tensor in tensors:
        owner = _owner(tensor)
        if owner is not None:
            owner.used(tensor, "" if tensor is overwritten else operation)


def note_no_gradient(tensor: torch.Tensor, reader: str) -> None:
    """Note that a tensor has no gradient on the host, and which code asked for it."""
    owner = _owner(tensor)
    if owner is not None:
        owner.lacks_gradient(tensor, reader)


def note_same(tensor: torch.Tensor) -> None:
    """Note that the values of a tensor were copied between host and device."""
    owner = _owner(tensor)
    if owner is not None:
        owner.same(tensor)


def note_replaced(tensor: torch.Tensor) -> None:
    """Note that a tensor has got other memory, which torch does not count as a write."""
    owner = _owner(tensor)
    if owner is not None:
        twinned[id(tensor)].version = -1
        owner.used(tensor, "")


def _owner(tensor: torch.Tensor) -> Twins | None:
    use = twinned.get(id(tensor))
    return None if use is None else use.owner()


def overwrite(target: torch.Tensor, values: torch.Tensor) -> None:
    """Write a tensor's memory without a note: the writer knows what it does.

    Args:
        target: A tensor with values.
        values: Its new ones.
    """
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        data_of(host_of(target)).copy_(values)


def replace(target: torch.Tensor, values: torch.Tensor) -> None:
    """Give a tensor other memory without a note: the caller knows what it does.

    Args:
        target: A tensor.
        values: What it has from now on; not used otherwise.
    """
    set_data(host_of(target), values)
    set_data(target, values)


def note_alias(tensor: torch.Tensor, alias: torch.Tensor) -> None:
    """Note that a script has got an alias of a tensor's memory whose writes torch counts apart.

    Args:
        tensor: The tensor.
        alias: What ``data`` gave.
    """
    owner = _owner(tensor)
    if owner is None:
        return
    use = twinned[id(tensor)]
    if len(use.aliases) >= _MANY:
        # A list, this loop and the call hold three references to one that the script has dropped.
        use.aliases = [a for a in use.aliases if a._version or sys.getrefcount(a) > 3]
    use.aliases.append(alias)
    owner.used(tensor, "data")
