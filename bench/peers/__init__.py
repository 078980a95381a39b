"""The contenders: each module here builds a training step out of a case.

``prepare(case, model)`` returns two functions: one brings a batch into the form that
its users have it in on the host (torch tensors or numpy arrays), outside the
timed region; the other runs one full training step on it (inputs to the device,
forward, backward, optimizer) and returns the loss as a Python float.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from bench.case import Batch, Case
from bench.measurement import ALLOC, OURS

Prepared = tuple[Callable[[Batch], Any], Callable[[Any], float]]

REFERENCE = "eager"

MODULES: Mapping[str, str] = MappingProxyType(
    {
        OURS: "bench.peers.ours",
        REFERENCE: "bench.peers.eager",
        "compile": "bench.peers.compiled",
        "jax": "bench.peers.jax_jit",
    }
)
"""Modules by contender. They are imported in the contender's own process only."""

REPLICA = "replica"
"""This project with a PEF for replicas: for the suites about them, nobody's peer."""

DDP = "ddp"
"""Torch's DistributedDataParallel, which replicas of this project are held against."""

PEERS = tuple(name for name in MODULES if name != OURS)
"""What this project is measured against."""

_REPLICAS = {REPLICA: "bench.peers.replica", DDP: "bench.peers.ddp"}

CONTENDERS = (*MODULES, *(f"{name}{ALLOC}" for name in PEERS))
"""Everyone who runs: the peers as they come and once more with our allocator settings."""


def load(contender: str, case: Case) -> Any:
    """Import a contender's module, after its allocator settings for a case if it has any."""
    name = contender.removesuffix(ALLOC)
    if name != contender:
        from emulator.memory.allocator import (  # noqa: PLC0415  # older code has it elsewhere
            keep_freed_memory,
            share_one_arena,
        )

        keep_freed_memory()
        if case.large:
            share_one_arena()
    return importlib.import_module({**MODULES, **_REPLICAS}[name])


def prepare(contender: str, case: Case) -> Prepared:
    """Build the step of a contender; compilation may happen here or in the first step."""
    return load(contender, case).prepare(case, case.model())
