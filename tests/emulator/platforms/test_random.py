"""Random numbers are a hash of whole numbers: every platform computes the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emulator.op_facts.names import NEXT_SEED
from emulator.ops.random import normal, uniform, uniform_bits
from emulator.ops.registry import load_ops
from emulator.trace_settings import wide_types
from tests.emulator.platforms.products import custom_calls, operations

SEED = jax.ShapeDtypeStruct((2,), np.uint32)
DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda seed: uniform_bits(seed, 3, (4, 5)),
    "uniform": lambda seed: uniform(seed, 3, (4, 5)),
    "uniform64": lambda seed: uniform(seed, 3, (4, 5), np.float64),
    "normal": lambda seed: normal(seed, 3, (4, 5)),
    "dropout": lambda seed: load_ops()["aten.dropout.default"].lower(
        jnp.ones((4, 5)), 0.5, True, seed=seed, stream=2
    ),
    "next": lambda seed: load_ops()[NEXT_SEED].lower(seed),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_operations_on_every_platform(name: str) -> None:
    with wide_types():
        traced = jax.jit(DRAWS[name]).trace(SEED)
        ways = [traced.lower(lowering_platforms=(p,)) for p in ("cpu", "cuda")]
    assert ways[0].as_text() == ways[1].as_text()
    assert not custom_calls(ways[1])
    assert not [o.name for o in operations(ways[1]) if "rng" in o.name]


def test_bits_are_made_of_whole_numbers_alone() -> None:
    """What rounds could round otherwise elsewhere."""
    traced = jax.jit(DRAWS["bits"]).trace(SEED)
    found = operations(traced.lower(lowering_platforms=("cuda",)))
    types = {
        str(result.type.element_type)
        for operation in found
        if operation.name.startswith("stablehlo.")
        for result in operation.results
    }
    assert types == {"ui32"}
