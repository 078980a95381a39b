"""What a call of ``session.run`` asks for, and what was prepared for the last one."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from samba.errors import ArgumentError, described

if TYPE_CHECKING:  # these load jax, which a session without a program needs not
    from emulator.plans.plan import Plan
    from emulator.plans.steps import StepKey
    from samba.distributed.replica_runs import PreparedRun, Wish

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
        entries = list(itertools.islice(iter(items), _MOST + 1))
    except TypeError:
        raise ArgumentError(
            where=where, found=described(items), wanted="a list or a tuple"
        ) from None
    if len(entries) > _MOST:
        raise ArgumentError(
            where=where, found=f"more than {_MOST} entries", wanted="a list or a tuple"
        )
    return entries


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


Fetches = tuple[tuple[int, str], ...]
"""Regions to fetch with the names that the fetched tensors get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that was made, with what was found for it: a call that asks the same repeats it.

    Args:
        output_tensors: The outputs it asked for, as passed; a value that no call can pass where
            they may have changed since.
        listed: The outputs of a list or tuple, as they were.
        hyperparams: Its hyperparameters, as plain values; None where no call repeats them.
        sections: Which part of the schedule it asked for.
        train: Whether it honoured dropout rates.
        wish: How replicas reduced gradients.
        variant: What its plan was specialised for.
        steps: Steps that it ran.
        plan: The plan of these steps; None if there are none.
        fetches: What it fetched.
        fetched_bytes: Bytes of that.
    """

    output_tensors: object
    listed: list[Any] | tuple[Any, ...] | None
    hyperparams: Mapping[str, Any] | None
    sections: Any
    train: bool
    wish: Wish | None
    variant: object
    steps: StepKey
    plan: Plan | PreparedRun | None
    fetches: Fetches
    fetched_bytes: int


NO_CALL = PreparedCall(
    output_tensors=object(),
    listed=None,
    hyperparams=None,
    sections=None,
    train=True,
    wish=None,
    variant=None,
    steps=(),
    plan=None,
    fetches=(),
    fetched_bytes=0,
)


def plain(value: Any) -> Any:
    """The present content of a value: a tensor or an array may be changed in place later."""
    if not isinstance(value, (torch.Tensor, np.ndarray)):
        return value
    try:
        return value.tolist()
    except (RuntimeError, NotImplementedError):  # a sparse tensor has none
        return object()  # equal to nothing, so that no call repeats it


def same_items(outputs: Any, last: list[Any] | tuple[Any, ...] | None) -> bool:
    """Whether a list or tuple, made again or changed meanwhile, holds the last call's outputs."""
    return (
        last is not None
        and type(outputs) is type(last)
        and len(outputs) == len(last)
        and all(map(operator.is_, outputs, last))
    )
