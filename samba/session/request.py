"""The request of one call of ``session.run``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from samba.errors import ArgumentError, described

if TYPE_CHECKING:
    from samba.distributed.replica_runs import Wish

__all__ = ["RunRequest", "SectionRequest", "listed"]

_MOST = 1_000_000
"""Entries of a list that a call takes: an endless generator is told as such."""


def listed(items: Any, where: str) -> list[Any]:
    """What a script passed for a list, as a list.

    Args:
        items: Anything that can be iterated.
        where: The argument, for the error.

    Raises:
        ArgumentError: If it cannot be iterated, or has no end.
    """
    try:
        found = list(itertools.islice(iter(items), _MOST + 1))
    except TypeError:
        raise ArgumentError(
            where=where, found=described(items), wanted="a list or a tuple"
        ) from None
    if len(found) > _MOST:
        raise ArgumentError(
            where=where, found=f"more than {_MOST} entries", wanted="a list or a tuple"
        )
    return found


class SectionRequest(NamedTuple):
    """The part of the schedule to run, as a script passed it.

    Args:
        types: Section types, one or several; empty for all.
        ids: Section ids, nested as one likes; empty for all.
        from_call: First call of the schedule, None for its first.
        until_call: Last call of the schedule, None for its last.
    """

    types: Any
    ids: Any
    from_call: int | None
    until_call: int | None


class RunRequest(NamedTuple):
    """One call of ``session.run``.

    A tuple with names, because every call makes one: a frozen dataclass takes five times as long.

    Args:
        input_tensors: Tensors to transfer, in any of the accepted forms; None for none.
        output_tensors: Tensors to fetch, or their names.
        hyperparams: Hyperparameters by key; they stay until changed.
        sections: The part of the schedule to run: the fields of :class:`SectionRequest`, which is
            made of them where they are not those of the last call.
        grad_of_outputs: Gradients of the outputs, None for none.
        train: Whether dropout rates are honoured.
        wish: How replicas reduce gradients, None if they do not.
    """

    input_tensors: Any
    output_tensors: Any
    hyperparams: Mapping[str, Any]
    sections: tuple[Any, Any, int | None, int | None]
    grad_of_outputs: Any = None
    train: bool = True
    wish: Wish | None = None
