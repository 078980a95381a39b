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
from tests.emulator.ops.checks import cases, check, torch_op
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


_FROM_TORCHS: dict[str, float] = {
    "gelu tanh": 1.0,
    "mish": 1.0,
    "tanh": 12.0,  # 1 - y * y of a result y that XLA computes by polynomials, 4 units off at most
}
"""How many times as far from the exact slope as torch's the device's may be, where it is not 2."""


def test_slopes_are_as_close_to_the_exact_ones_as_torchs() -> None:
    """Where a gate is close to 1 or a slope to 0, too; the exact one is torch's in float64."""
    tiny = 2.0 ** -np.arange(1, 126)
    x = np.concatenate([np.linspace(-30, 30, 60013), tiny, -tiny, [0.0]]).astype(np.float32)

    def torchs(name: str, args: Any, kwargs: Any, dtype: torch.dtype) -> np.ndarray:
        leaf = torch.from_numpy(x).to(dtype).requires_grad_()
        torch_op(f"aten.{name}.default")(leaf, *args, **kwargs).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.double().numpy()

    @jax.jit
    def slopes(x: jax.Array) -> list[jax.Array]:
        found: list[jax.Array] = []
        for name, args, kwargs in POINTWISE:
            lower = load_ops()[f"aten.{name}.default"].lower
            result, pull = jax.vjp(lambda v: lower(v, *args, **kwargs), x)  # noqa: B023  # called here
            found += pull(jnp.ones_like(result))
        return found

    for (name, args, kwargs), ours in zip(POINTWISE, slopes(jnp.asarray(x)), strict=True):
        what = " ".join([name, *map(str, args), *kwargs.values()])
        exact = torchs(name, args, kwargs, torch.float64)
        far = np.abs(torchs(name, args, kwargs, torch.float32) - exact).max()
        assert far < 1.1e-6, what
        found = np.abs(np.asarray(ours, np.float64) - exact).max()
        assert found <= _FROM_TORCHS.get(what, 2.0) * far, what


def test_small_slopes_below_zero_have_all_digits() -> None:
    """That of an exponential is one, and no difference of two numbers close to 1."""
    x = np.linspace(-30, -1, 2901).astype(np.float32)
    wide = x.astype(np.float64)
    for name, args, exact in (
        ("elu", (), np.exp(wide)),
        ("celu", (0.7,), np.exp(wide / 0.7)),
        ("selu", (), 1.0507009873554805 * 1.6732632423543772 * np.exp(wide)),
    ):
        lower = load_ops()[f"aten.{name}.default"].lower
        result, pull = jax.vjp(lambda v: lower(v, *args), jnp.asarray(x))  # noqa: B023  # called here
        np.testing.assert_allclose(pull(jnp.ones_like(result))[0], exact, rtol=3e-6)


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
