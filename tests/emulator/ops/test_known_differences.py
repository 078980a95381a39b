"""What the device computes otherwise than torch, and docs/deviations.md has a row for."""

from __future__ import annotations

import logging
import math
from typing import Any

import jax
import numpy as np
import pytest
import torch

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import to_jax, torch_op
from tests.tracing import trace

NAN = math.nan


def on_device(name: str, *args: Any) -> tuple[np.ndarray, ...]:
    """An op's results, compiled."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]

    def run(arrays: list[Any]) -> Any:
        given = iter(arrays)
        return load_ops()[name].lower(
            *(next(given) if isinstance(a, torch.Tensor) else a for a in args)
        )

    with jax.enable_x64(True):
        out = jax.jit(run)([to_jax(t) for t in tensors])
        return tuple(np.asarray(x) for x in (out if isinstance(out, tuple) else (out,)))


def slope(name: str, x: torch.Tensor, *args: Any) -> np.ndarray:
    """The gradient of the sum of an op's first result."""

    def total(a: Any) -> Any:
        rest = [to_jax(r) if isinstance(r, torch.Tensor) else r for r in args]
        out = load_ops()[name].lower(a, *rest)
        return (out[0] if isinstance(out, tuple) else out).sum()

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.grad(total))(to_jax(x)))


def test_denormals_count_as_zeros() -> None:
    x = torch.tensor([1e-38, 1e-40], dtype=torch.float32)
    assert on_device("aten.mul.Tensor", x, torch.full((2,), 0.5))[0].tolist() == [0.0, 0.0]
    assert on_device("aten.log.default", x)[0].tolist()[1] == -math.inf
    assert (x * 0.5).tolist() != [0.0, 0.0]
    torch.set_flush_denormal(True)
    try:
        assert (x * 0.5).tolist() == [0.0, 0.0]
    finally:
        torch.set_flush_denormal(False)


def test_mode_counts_each_nan_for_itself() -> None:
    x = torch.tensor([NAN, 1.0, NAN, 2.0])
    assert torch.mode(x).values.isnan()
    assert [r.item() for r in on_device("aten.mode.default", x, 0)] == [1.0, 1]
    assert on_device("aten.mode.default", torch.tensor([NAN, 1.0, 1.0]), 0)[0] == 1.0


@pytest.mark.parametrize("transposed", [False, True])
def test_padding_takes_part_in_no_weight_gradient(transposed: bool) -> None:
    """Taps 0 and 1 of a window meet nothing but padding where the NaN is."""
    data, other = torch.ones(1, 1, 6), torch.ones(1, 1, 4 if transposed else 8)
    (data if transposed else other)[0, 0, 0] = NAN

    def total(weight: jax.Array) -> jax.Array:
        how = (None, [1], [2], [1], transposed, [0], 1)
        result = load_ops()["aten.convolution.default"].lower(to_jax(data), weight, *how)
        return (result * to_jax(other)).sum()

    gradient = np.asarray(jax.jit(jax.grad(total))(to_jax(torch.ones(1, 1, 3))))
    assert np.isnan(gradient).tolist() == [[[False, False, True]]]


@pytest.mark.parametrize("count", [3, 20])
def test_of_equal_numbers_the_first_are_taken(count: int) -> None:
    x = torch.tensor([2.0, *[1.0] * count])
    values, places = on_device("aten.topk.default", x, 3)
    torchs = torch.topk(x, 3)
    assert values.tolist() == torchs.values.tolist()
    assert places.tolist() == [0, 1, 2] != torchs.indices.tolist()
    value, place = on_device("aten.kthvalue.default", x, 2)
    assert (value, place) == (1.0, 2) != (1.0, torch.kthvalue(x, 2).indices.item())


def test_a_product_that_overflows_alone_may_be_fused() -> None:
    x, big = torch.tensor([math.inf]), torch.tensor([torch.finfo(torch.float32).max])
    assert np.isnan(on_device("aten.addcmul.default", x, big, -big)[0]) or (
        on_device("aten.addcmul.default", x, big, -big)[0] == math.inf
    )
    assert on_device("aten.addcmul.default", -big, big, torch.ones(1))[0] == 0.0

    def one_and_other(a: jax.Array) -> jax.Array:
        product = load_ops()["aten.mul.Tensor"].lower(a, 2.0)
        return load_ops()["aten.add.Tensor"].lower(product, -a)

    assert (big * 2 - big).isinf()
    assert jax.jit(one_and_other)(to_jax(big)).item() in (math.inf, big.item())


def test_steps_between_are_not_rounded() -> None:
    """Torch's own goes astray by the steps that it rounds."""
    x = torch.tensor([1 / 32, 20.0], dtype=torch.float16, requires_grad=True)
    (x[:1] ** -2 * -0.5).sum().backward()
    (x[1:].exp() * 0).sum().backward()
    assert x.grad is not None
    assert x.grad.isinf().tolist() == [True, False]
    assert x.grad.isnan().tolist() == [False, True]

    def both(a: jax.Array) -> jax.Array:
        powers = load_ops()["aten.pow.Tensor_Scalar"].lower(a[:1], -2)
        return (powers * -0.5).sum() + (load_ops()["aten.exp.default"].lower(a[1:]) * 0).sum()

    assert jax.jit(jax.grad(both))(to_jax(x.detach())).tolist() == [32768.0, 0.0]
    x = torch.tensor([0.001], dtype=torch.bfloat16)
    wide = torch.mvlgamma(x.float(), 3)
    assert torch.mvlgamma(x, 3).isinf()
    np.testing.assert_allclose(
        on_device("aten.mvlgamma.default", x, 3)[0].astype(np.float32), wide, rtol=1e-2
    )


def test_the_gradient_of_a_determinant_at_a_singular_matrix() -> None:
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
    torch.linalg.det(a).backward()
    assert a.grad is not None
    assert a.grad.abs().max() == 0
    found = slope("aten.linalg_det.default", a.detach())
    np.testing.assert_allclose(found, [[4, -2], [-2, 1]], atol=1e-5)


def test_rows_of_bags_are_counted_by_their_own_frequency(caplog) -> None:
    table = torch.ones(5, 2, requires_grad=True)
    rows, offsets = torch.tensor([1, 1, 2, 3, 1, 2]), torch.tensor([0, 3])
    out = torch.nn.functional.embedding_bag(
        rows, table, offsets, mode="sum", scale_grad_by_freq=True
    )
    out.sum().backward()
    assert table.grad is not None
    np.testing.assert_allclose(table.grad[:, 0], [0, 1, 2 / 3, 1 / 3, 0])
    found = slope("aten.embedding_bag.default", table.detach(), rows, offsets, True, 0)
    np.testing.assert_allclose(found[:, 0], [0, 1, 1, 1, 0])
    caplog.set_level(logging.WARNING)
    for by_frequency in (False, True):
        bag = torch.nn.EmbeddingBag(5, 2, mode="sum", scale_grad_by_freq=by_frequency)
        trace(bag, (rows, offsets))
        told = [r for r in caplog.records if "[deviation: bag-frequencies]" in r.getMessage()]
        assert len(told) == by_frequency


def test_the_gradient_of_log_ndtr_far_below_zero() -> None:
    x = torch.tensor([-1e10], requires_grad=True)
    torch.special.log_ndtr(x).backward()
    assert x.grad == 0
    found = slope("aten.special_log_ndtr.default", x.detach())
    np.testing.assert_allclose(found, [1e10], rtol=1e-6)


def test_polynomials_of_nan_are_nan() -> None:
    found = on_device("aten.special_legendre_polynomial_p.n_scalar", torch.tensor([NAN]), 3)
    assert np.isnan(found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_two_equal_zeros_the_first_is_taken(dtype: torch.dtype) -> None:
    a, b = torch.tensor([0.0, -0.0], dtype=dtype), torch.tensor([-0.0, 0.0], dtype=dtype)
    found = on_device("aten.fmax.default", a, b)[0]
    assert np.signbit(found.astype(np.float32)).tolist() == [False, True]
    for name, negative in (("maximum", False), ("minimum", True)):
        found = on_device(f"aten.{name}.default", a, b)[0]
        assert np.signbit(found.astype(np.float32)).tolist() == [negative] * 2
    firsts = torch.maximum(torch.full((40,), -0.0), torch.zeros(40)).signbit()
    assert firsts.any() and not firsts.all()  # by the place, of the same two


def test_nearest_neighbours_of_large_maps_go_by_the_factor() -> None:
    x = torch.arange(3.0).reshape(1, 1, 3, 1).expand(1, 4, 3, 70).contiguous()
    op, factors = torch_op("aten.upsample_nearest2d.vec"), [1.3, 2.003]
    assert op(x, None, factors)[0, 0, :, 0].tolist() == [0.0, 0.0, 1.0]
    last = x.contiguous(memory_format=torch.channels_last)
    assert op(last, None, factors)[0, 0, :, 0].tolist() == [0.0, 1.0, 2.0]
    found = on_device("aten.upsample_nearest2d.vec", x, None, factors)[0]
    assert found[0, 0, :, 0].tolist() == [0.0, 0.0, 1.0]


def test_the_gradient_of_distances_among_no_rows_is_empty() -> None:
    # Torch's own is not asked: it ends the process.
    assert slope("aten.pdist.default", torch.ones(0, 2), 2.0).shape == (0, 2)


def test_gradients_that_torch_refuses_are_the_derivative() -> None:
    x, source = torch.ones(3), torch.ones(4, requires_grad=True)
    index = torch.tensor([2, 0])
    with pytest.raises(RuntimeError, match="invalid gradient at index 1"):
        torch.scatter_add(x, 0, index, source).sum().backward()

    def total(src: Any) -> Any:
        add = load_ops()["aten.scatter_add.default"].lower
        return (add(to_jax(x), 0, to_jax(index), src) * np.arange(1.0, 4.0)).sum()

    with jax.enable_x64(True):
        gradient = np.asarray(jax.grad(total)(to_jax(source.detach())))
    assert gradient.tolist() == [3.0, 1.0, 0.0, 0.0]
