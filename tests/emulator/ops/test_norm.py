"""Normalisations against torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor

from emulator.ops.batch_norm import NoStatistics
from emulator.ops.norm import UntrackedStatistics
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check, to_jax, torch_op
from tests.emulator.ops.narrow import check_narrow
from tests.emulator.ops.traced import check_function


def data(*shape: int, seed: int = 0, offset: float = 0.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + offset


def params(*shape: int) -> list[torch.Tensor]:
    return [data(*shape, seed=1, offset=1.0), data(*shape, seed=2)]


def stats(channels: int) -> list[torch.Tensor]:
    return [data(channels, seed=3), data(channels, seed=4).abs() + 0.5]


def test_layer_norm() -> None:
    for x, normalized, weights in (
        ((3, 4, 8), (8,), 2),
        ((3, 4, 8), (4, 8), 2),
        ((2, 64), (64,), 1),
        ((2, 64), (64,), 0),
        ((5,), (5,), 2),
    ):
        given = params(*normalized)[:weights]
        check("aten.layer_norm.default", data(*x), list(normalized), *given)
    # A mean far from 0 must not cost the variance its digits.
    check("aten.layer_norm.default", data(4, 256, offset=30.0).double(), [256])
    check("aten.native_layer_norm.default", data(3, 8), [8], *params(8), 1e-5)


def test_group_norm() -> None:
    for x in ((2, 6, 5), (3, 6)):
        for groups in (1, 2):
            check("aten.group_norm.default", data(*x), groups, *params(6))
    check("aten.native_group_norm.default", data(2, 6, 4, 3), *params(6), 2, 6, 12, 3, 1e-5)


def test_instance_norm() -> None:
    name = "aten.instance_norm.default"
    for w, b in (params(3), (None, None)):
        args = (data(2, 3, 5, 4), w, b)
        check(name, *args, None, None, True, 0.1, 1e-5, False)
        check(name, *args, *stats(3), False, 0.1, 1e-5, False, frozen=(3, 4))


def test_instance_norm_cannot_track() -> None:
    lower = load_ops()["aten.instance_norm.default"].lower
    mean, var = (to_jax(t) for t in stats(3))
    with pytest.raises(UntrackedStatistics, match="track_running_stats"):
        lower(to_jax(data(2, 3, 5)), None, None, mean, var, True, 0.1, 1e-5, False)


def test_batch_norm_without_any_statistics() -> None:
    """In torch the process ends by a signal, or reads what lies there."""
    lower = load_ops()["aten._native_batch_norm_legit.no_stats"].lower
    with pytest.raises(NoStatistics, match="found training=False and no running statistics"):
        lower(to_jax(data(2, 3, 5)), None, None, False, 0.1, 1e-5)


def test_batch_norm() -> None:
    functional = "aten._native_batch_norm_legit_functional.default"
    evaluated = "aten._native_batch_norm_legit_no_training.default"
    for x, (w, b) in (
        ((4, 3, 5, 5), (None, None)),
        ((6, 3), params(3)),
        ((2, 3, 2, 3, 2), params(3)),
    ):
        args = (data(*x, offset=0.5), w, b, *stats(3))
        check(functional, *args, True, 0.1, 1e-5, frozen=(3, 4))
        check(evaluated, *args, 0.1, 1e-5, frozen=(3, 4))
    args = (data(4, 3, 5), *params(3), *stats(3))
    check(functional, *args, False, 0.1, 1e-5, frozen=(3, 4))
    x = data(2, 3, 7, offset=0.5)
    check("aten._native_batch_norm_legit.no_stats", x, *params(3), True, 0.1, 1e-5)


@pytest.mark.parametrize("eps", [1e-27, 1e-30])
def test_batch_norm_of_hardly_any_variance(eps: float) -> None:
    """The reciprocal deviation is so large that its cube would be infinite."""
    x, g = data(16, 3) * 1e-14, data(16, 3, seed=5)
    x[:, 1] = 0.0
    x.requires_grad_()
    torch.nn.functional.batch_norm(x, None, None, training=True, eps=eps).backward(g)
    lower = load_ops()["aten._native_batch_norm_legit.no_stats"].lower

    @jax.jit
    def gradient(x: jax.Array, g: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: lower(x, None, None, True, 0.1, eps)[0], x)[1](g)[0]

    assert x.grad is not None
    limit = 1e-6 * float(x.grad.abs().max())  # what is left of large terms that cancel
    found = gradient(to_jax(x), to_jax(g))
    np.testing.assert_allclose(found, x.grad, rtol=0.0, atol=limit)


def test_rms_norm() -> None:
    for weight in (params(8)[0], None):
        for eps in (None, 1e-3):
            check("aten.rms_norm.default", data(3, 8) * 1e-3, [8], weight, eps, grad=False)
            check("aten.rms_norm.default", data(3, 8), [8], weight, eps)
            check("aten._fused_rms_norm.default", data(3, 8), [8], weight, eps)


def test_weight_norm() -> None:
    for dim, shape in ((0, (4, 1)), (1, (1, 6))):
        check("aten._weight_norm.default", data(4, 6), data(*shape, seed=5), dim)
        check("aten._weight_norm_interface.default", data(4, 6), data(*shape, seed=5), dim)
    check("aten._weight_norm.default", data(4, 6), data(1, seed=5)[0], -1)


def test_bfloat16() -> None:
    check_narrow("aten.layer_norm.default", data(6, 32), [32], *params(32))
    check_narrow("aten.group_norm.default", data(2, 6, 9), 3, *params(6))
    check_narrow("aten.rms_norm.default", data(6, 32), [32], params(32)[0])
    name = "aten._native_batch_norm_legit.no_stats"
    check_narrow(name, data(6, 3, 5), *params(3), True, 0.1, 1e-5)


@pytest.mark.parametrize("param_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("_native_batch_norm_legit_functional", (True, 0.1, 1e-5)),
        ("_native_batch_norm_legit_no_training", (0.1, 1e-5)),
    ],
)
def test_dtypes_of_bfloat16_statistics(
    name: str, extra: tuple[Any, ...], param_dtype: torch.dtype
) -> None:
    """Values are compared above; the moments have the dtype of the parameters."""
    tensors = [data(6, 3, 5).bfloat16(), *(t.to(param_dtype) for t in (*params(3), *stats(3)))]
    want = torch_op(f"aten.{name}.default")(*tensors, *extra)
    lower = load_ops()[f"aten.{name}.default"].lower
    got = jax.eval_shape(lambda *arrays: lower(*arrays, *extra), *map(to_jax, tensors))
    assert [str(t.dtype) for t in got] == [str(t.dtype).removeprefix("torch.") for t in want]


_MOMENTS: dict[str, Callable[..., Sequence[Tensor]]] = {
    "layer": lambda x, w, b, *_: torch.native_layer_norm(x, [6], w, b, 1e-5),
    "group": lambda x, w, b, *_: torch.native_group_norm(x, w, b, 4, 6, 1, 2, 1e-5),
    "batch": lambda x, *given: torch.native_batch_norm(x, *given, True, 0.1, 1e-5),
    "evaluated": lambda x, *given: torch.native_batch_norm(x, *given, False, 0.1, 1e-5),
    "own batch": lambda x, w, b, *_: torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5),
}
_NARROW = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]


@pytest.mark.parametrize("narrow", _NARROW)
@pytest.mark.parametrize("norm", _MOMENTS.values(), ids=_MOMENTS)
def test_norms_of_16_bits_in_each_mix_of_types_that_torch_computes(
    norm: Callable[..., Sequence[Tensor]], narrow: torch.dtype
) -> None:
    """Results, moments and running statistics; its exporter says that all moments are narrow."""
    types = narrow, torch.float32
    mixes = [(w, b, kind) for kind in types for w in (kind, None) for b in (kind, None)]

    def norms(x: Tensor, *given: Tensor, exact: bool = False) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for weight, bias, kind in mixes:
            parameters: list[Tensor | None] = []
            for value, dtype in zip(given, (weight, bias, kind, kind), strict=True):
                typed = None if dtype is None else value.to(dtype)
                parameters.append(typed.double() if typed is not None and exact else typed)
            found += norm(x, *parameters)
            found += [t for t in parameters[2:] if t is not None]
        return tuple(found)

    tensors = [data(4, 6).to(narrow), *params(6), *stats(6)]
    exact = norms(tensors[0].double(), *tensors[1:], exact=True)
    check_function(norms, tensors, exact)
    x, *given = tensors
    check_function(lambda x: norm(x, *map(torch.clone, given))[0], [x.requires_grad_()])
