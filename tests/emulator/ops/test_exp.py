"""The exponential at infinity, in what XLA makes of it together with what follows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.registry import load_ops
from emulator.plans.executable_cache import xla_options

POINTS = (0.0, 1.0, 88.7, 89.0, 1e4, float("inf"), float("-inf"), float("nan"))
_FULL = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
"""As users' programs are compiled: the fast tests leave optimizations out."""


def near(dtype: torch.dtype) -> float:
    """Two exponentials may each be a unit in the last place off, and their difference rounds."""
    return 3 * torch.finfo(dtype).eps


def device(x: jax.Array, t: jax.Array) -> jax.Array:
    return load_ops()["aten.exp.default"].lower(x) - t * x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinity_less_infinity_is_no_number(dtype: torch.dtype) -> None:
    with jax.enable_x64(True):
        x = torch.tensor(POINTS, dtype=dtype)
        options = {**xla_options(jax.devices("cpu")[0]), **_FULL}
        t = torch.linspace(0.5, 2, len(POINTS), dtype=dtype)
        run = jax.jit(device, compiler_options=options)
        found = run(jnp.asarray(x.numpy()), jnp.asarray(t.numpy()))
        np.testing.assert_allclose(np.asarray(found), (x.exp() - t * x).numpy(), rtol=near(dtype))


def test_its_gradient_is_itself() -> None:
    x = torch.tensor(POINTS, requires_grad=True)
    x.exp().sum().backward()
    lower = load_ops()["aten.exp.default"].lower
    found = jax.jit(jax.grad(lambda x: lower(x).sum()))(jnp.asarray(x.detach().numpy()))
    assert x.grad is not None
    np.testing.assert_allclose(np.asarray(found), x.grad.numpy(), rtol=near(x.dtype))
