"""What XLA fuses: a value with several readers is made once, and no fusion has several results."""

from __future__ import annotations

import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]  # jax makes its options of it

from emulator.plans import extra_options, xla_options
from emulator.plans.executable_cache import compiled_or_kept

STEPS = 12
X, W = jnp.ones((4, 8)), jnp.eye(8)


def chain(w: jax.Array, x: jax.Array) -> jax.Array:
    """Each step is read by a product and by the next one."""
    h = x
    for step in range(STEPS):
        h = jnp.tanh(h @ w) + 0.1 * jnp.cos(h) * step
    return h.sum()


def optimized(function: Any, *arrays: jax.Array, once: bool = True) -> str:
    # A function of its own: jax keeps the executable of one that it has compiled.
    lowered = jax.jit(lambda *given: function(*given)).lower(*arrays)
    options = xla_options.xla_options(jax.devices("cpu")[0])
    return compiled_or_kept(lowered, options, once=once).compiled.as_text()


def count(opcode: str, text: str) -> int:
    return len(re.findall(rf" {opcode}\(", text))


def test_no_reader_makes_a_value_anew() -> None:
    found = optimized(jax.value_and_grad(chain), W, X)
    assert count("sine", found) < STEPS, "one step is multiplied by zero"
    without = optimized(jax.value_and_grad(chain), W, X, once=False)
    assert count("sine", without) > 2 * STEPS, "else the option would do nothing"


def test_no_fusion_has_several_results() -> None:
    """XLA:CPU computes those on one core."""

    def two(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.cos(x) * 2.0, jnp.sin(x) + 1.0

    assert not re.search(r"= \([^)]*\) fusion\(", optimized(two, X))


class Refusing:
    """Compile options of a jaxlib that takes no such bytes."""

    def SerializeAsString(self) -> bytes:
        return b""

    @classmethod
    def ParseFromString(cls, content: bytes) -> Any:
        raise ValueError(f"{len(content)} bytes are no options")


class Renumbered(Refusing):
    """Compile options of one where the number of the field is another one."""

    executable_build_options = xla_client.CompileOptions().executable_build_options

    @classmethod
    def ParseFromString(cls, content: bytes) -> Any:
        return cls()


@pytest.mark.parametrize("options", [Refusing(), Renumbered()])
def test_where_it_is_not_taken_it_is_left_out_and_said_once(
    options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    extra_options._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "emulator"):
        for _ in range(2):
            assert extra_options.with_extra_options(options) is options
    (text,) = caplog.messages
    assert text.startswith(f"XLA compiles without {extra_options.ONE_READER}: ")


def test_other_options_stay() -> None:
    options = xla_client.CompileOptions()
    options.num_replicas = 3
    options.executable_build_options.debug_options.xla_disable_hlo_passes = "one,two"
    found = extra_options.with_extra_options(options)
    assert found.num_replicas == 3
    assert found.executable_build_options.debug_options.xla_disable_hlo_passes == "one,two"
