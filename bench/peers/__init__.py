"""The contenders: functions that build a training step out of a case.

``contender(case, model)`` returns two functions: one brings a batch into the form that
its users have it in on the host (torch tensors or numpy arrays), outside the
timed region; the other runs one full training step on it (inputs to the device,
forward, backward, optimizer) and returns the loss as a Python float.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from bench.measurement import ALLOC, OURS

if TYPE_CHECKING:  # help texts name the contenders, and load no torch
    from torch import nn

    from bench.case import Batch, Case

Prepared: TypeAlias = "tuple[Callable[[Batch], Any], Callable[..., float]]"

REFERENCE = "eager"

PEERS = (REFERENCE, "compile", "jax")
"""What this project is measured against."""

REPLICA = "replica"
"""This project with a PEF for replicas: for the suites about them, nobody's peer."""

DDP = "ddp"
"""Torch's DistributedDataParallel, which replicas of this project are held against."""

_FUNCTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        OURS: ("bench.peers.ours", "ours"),
        REFERENCE: ("bench.peers.torch_step", "eager"),
        "compile": ("bench.peers.torch_step", "compiled"),
        "jax": ("bench.peers.by_hand", "jax_step"),
        REPLICA: ("bench.peers.ours", "replica"),
        DDP: ("bench.peers.torch_step", "ddp"),
    }
)
"""Module and function by contender. A module is imported in its contender's own process only."""

CONTENDERS = (OURS, *PEERS, *(f"{name}{ALLOC}" for name in PEERS))
"""Everyone who runs: the peers as they come and once more with our allocator settings."""


def load(contender: str, case: Case) -> Callable[[Case, nn.Module], Prepared]:
    """Import a contender's function, after its allocator settings for a case if it has any."""
    name = contender.removesuffix(ALLOC)
    if name != contender:
        from emulator.memory.allocator import (  # noqa: PLC0415  # older code has it elsewhere
            keep_freed_memory,
            share_one_arena,
        )

        keep_freed_memory()
        if case.large:
            share_one_arena()
    module, function = _FUNCTIONS[name]
    return getattr(importlib.import_module(module), function)


def prepare(contender: str, case: Case) -> Prepared:
    """Build the step of a contender; compilation may happen here or in the first step."""
    return load(contender, case)(case, case.model())
