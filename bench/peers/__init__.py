"""The contenders: each module here builds a training step out of a case.

``prepare(case)`` returns two functions: one brings a batch into the form that
its users have it in on the host (torch tensors or numpy arrays), outside the
timed region; the other runs one full training step on it (inputs to the device,
forward, backward, optimizer) and returns the loss as a Python float.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from bench.models import Batch, Case

Prepared = tuple[Callable[[Batch], Any], Callable[[Any], float]]

OURS = "ours"
REFERENCE = "eager"

CONTENDERS: Mapping[str, str] = MappingProxyType(
    {
        OURS: "bench.peers.ours",
        REFERENCE: "bench.peers.eager",
        "compile": "bench.peers.compiled",
        "jax": "bench.peers.jax_jit",
    }
)
"""Modules by contender. They are imported in the contender's own process only."""


def prepare(contender: str, case: Case) -> Prepared:
    """Build the step of a contender; compilation may happen here or in the first step."""
    return importlib.import_module(CONTENDERS[contender]).prepare(case)
