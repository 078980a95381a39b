"""What a call of ``session.run`` was, so that the next one can be seen to ask for the same."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulator.plans.plan import Plan
from emulator.plans.steps import StepKey

if TYPE_CHECKING:
    from samba.distributed.replica_runs import PreparedRun, Wish

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


def same_items(outputs: Any, kept: list[Any] | tuple[Any, ...] | None) -> bool:
    """Whether a list or tuple, made anew or changed meanwhile, holds the last call's outputs."""
    return (
        kept is not None
        and type(outputs) is type(kept)
        and len(outputs) == len(kept)
        and all(map(operator.is_, outputs, kept))
    )
