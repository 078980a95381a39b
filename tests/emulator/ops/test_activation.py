"""Activations, softmax, and the exponential at infinity, against torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.registry import load_ops
from emulator.plans.xla_options import xla_options
from tests.emulator.ops.checks import cases, check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")

POINTWISE: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("relu", (), {}),
    ("gelu", (), {}),
    ("gelu", (), {"approximate": "tanh"}),
    ("silu", (), {}),
    ("sigmoid", (), {}),
    ("tanh", (), {}),
    ("softplus", (), {}),
    ("softplus", (2, 3), {}),
    ("elu", (), {}),
    ("elu", (0.5, 1.5, 2.0), {}),
    ("selu", (), {}),
    ("celu", (0.7,), {}),
    ("leaky_relu", (), {}),
    ("leaky_relu", (-0.3,), {}),
    ("hardtanh", (), {}),
    ("hardtanh", (-0.5, 2), {}),
    ("relu6", (), {}),
    ("hardsigmoid", (), {}),
    ("hardswish", (), {}),
    ("mish", (), {}),
    ("rrelu", (), {}),
    ("threshold", (0.1, 20), {}),
    ("log_sigmoid", (), {}),
    ("softshrink", (), {}),
    ("hardshrink", (0.25,), {}),
]


def grid() -> torch.Tensor:
    """A sweep that hits knees and zero, saturation, and values that are not numbers."""
    knees = torch.tensor([0.0, -0.0, -3.0, 3.0, 6.0, 0.5, -0.5, 1.0, -1.0, 0.25, 50.0, -50.0, NAN])
    return torch.cat([torch.linspace(-8, 8, 83), knees]).reshape(12, 8)


def test_pointwise() -> None:
    for name, args, kwargs in POINTWISE:
        check(f"aten.{name}.default", grid(), *args, **kwargs)
    for name in ("relu", "gelu", "sigmoid", "tanh", "elu"):
        check(f"aten.{name}.default", grid()[:10].bfloat16())
    for name in ("gelu", "tanh"):
        check(f"aten.{name}.default", grid().double())
    for name in ("sigmoid", "tanh", "relu"):  # relu alone leaves whole numbers
        check(f"aten.{name}.default", torch.arange(-3, 4))
    for shape in ((0, 3), ()):
        check("aten.relu.default", torch.ones(shape))


def test_the_slope_of_tanh_gelu_loses_no_digits() -> None:
    """Where the gate is close to 1, too: it is as close to the exact slope as torch's is."""
    slopes: list[np.ndarray] = []
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-8, 8, 4001).to(dtype).requires_grad_()
        torch.nn.functional.gelu(x, approximate="tanh").sum().backward()
        slopes.append(x.grad.double().numpy())
    lower = load_ops()["aten.gelu.default"].lower
    given = jnp.asarray(x.detach().float().numpy())
    result, pull = jax.vjp(lambda v: lower(v, approximate="tanh"), given)
    (ours,) = pull(jnp.ones_like(result))
    torchs, exact = slopes
    assert np.abs(np.asarray(ours) - exact).max() <= np.abs(torchs - exact).max() < 1.1e-6


def test_gates_and_slopes() -> None:
    check("aten.glu.default", torch.randn(6), -1)
    check("aten.glu.default", torch.randn(4, 3, 5), 0)
    for shape, weights in (((4, 3, 5), 3), ((4, 3), 1), ((7,), 1)):
        check("aten.prelu.default", torch.randn(shape), torch.randn(weights))


@cases("name", ["softmax", "log_softmax"])
def test_softmax(name: str) -> None:
    for shape, *args in (((3, 7), -1), ((2, 3, 4), 1), ((), 0), ((3, 4), 0, torch.float64)):
        check(f"aten.{name}.int", torch.randn(shape) * 4, *args)
    rows = [[1e4, -1e4, 3.0], [-INF, 0.0, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0], [INF, 0, 1]]
    check(f"aten.{name}.int", torch.tensor(rows), -1)
    check(f"aten._{name}.default", torch.tensor(rows), 1, False)
    check_narrow(f"aten.{name}.int", torch.randn(5, 40), 1)
    check(f"aten.{name}.int", torch.randn(5, 40).bfloat16(), 1, torch.float32)


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
