"""Linear algebra against torch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.errors import LoweringError
from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import cases, check, torch_op


def regular(*batch: int) -> torch.Tensor:
    """Well-conditioned 4 x 4 matrices."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*batch, 4, 4, generator=generator, dtype=torch.float64) + 4 * torch.eye(4)


def test_square() -> None:
    for power in (-2, 0, 5):
        check("aten.linalg_matrix_power.default", regular(2), power)
    for name in ("linalg_inv", "inverse", "linalg_det", "linalg_slogdet", "logdet"):
        check(f"aten.{name}.default", regular(2))
    for upper in (False, True):
        check("aten.linalg_cholesky.default", regular(2) @ regular(2).mT, upper=upper)


def right(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def test_solve() -> None:
    check("aten.linalg_solve.default", regular(2), right(2, 4, 3))
    check("aten.linalg_solve.default", regular(2), right(2, 4))
    check("aten.linalg_solve.default", regular(2), right(2, 3, 4), left=False)
    check("aten.linalg_solve.default", regular(), right(4))


@cases(
    ("left", "upper", "unitriangular"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, False)],
)
def test_solve_triangular(left: bool, upper: bool, unitriangular: bool) -> None:
    a = regular(2).triu() if upper else regular(2).tril()
    if unitriangular:
        a = a / 8 + torch.eye(4) - torch.diag_embed(torch.diagonal(a / 8, dim1=-2, dim2=-1))
    name = "aten.linalg_solve_triangular.default"
    check(name, a, right(2, 4, 4), upper=upper, left=left, unitriangular=unitriangular)


def test_others() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 3, 5, generator=generator) for _ in range(2))
    check("aten.linalg_cross.default", a, b, dim=1)
    # A triangle that is not read may hold NaN.
    a = torch.tensor([[2.0, float("nan")], [1.0, 3.0]])
    check("aten._linalg_eigh.default", a, "L", False, grad=False)
    # There may be thresholds for more batches than there are matrices.
    rcond = torch.tensor([[0.1], [1e-3]])
    check("aten.linalg_pinv.rcond_tensor", torch.randn(2, 4, 3), rcond, frozen=(1,))


@cases("bad", [float("nan"), float("inf"), -float("inf")], every=2)
def test_matrices_that_are_not_finite_give_nan_and_leave_the_others_alone(bad: float) -> None:
    """LAPACK's loop for singular values may never end there; torch raises, or gives NaN."""
    rng = np.random.default_rng(0)
    good = rng.standard_normal((3, 3)).astype(np.float32)
    a = np.stack([good, good])
    a[0, 0, 0] = bad
    ops = load_ops()
    for op in ("aten._linalg_svd.default", "aten._linalg_eigh.default", "aten.linalg_pinv.default"):
        lower = ops[op].lower

        def both(x: jax.Array, lower: Any = lower) -> Any:
            return jax.tree.leaves(jax.vjp(lower, x)[0])

        with jax.enable_x64(True):  # as everything that the device runs
            results = jax.jit(both)(jnp.asarray(a))
        for found in results:
            assert np.isnan(np.asarray(found)[0]).all(), op
            assert np.isfinite(np.asarray(found)[1]).all(), op
    check("aten.linalg_pinv.default", torch.from_numpy(good), 1e-15)


@cases("shape", [(0, 3, 3), (0, 5), (3, 0), (2, 0, 4)])
def test_lu_of_nothing_without_pivoting_has_no_permutation(shape: tuple[int, ...]) -> None:
    a = torch.zeros(shape, dtype=torch.float64)
    for name in ("linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex"):
        check(f"aten.{name}.default", a, pivot=False, grad=False)
        check(f"aten.{name}.default", a, grad=False)


@pytest.mark.parametrize("name", ["linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex"])
def test_lu_without_pivoting_is_refused_as_in_torch(name: str) -> None:
    with pytest.raises(RuntimeError, match="without pivoting is not implemented"):
        torch_op(f"aten.{name}.default")(regular(), pivot=False)
    with pytest.raises(LoweringError, match=r"without pivoting .* is not implemented"):
        load_ops()[f"aten.{name}.default"].lower(jnp.eye(3), pivot=False)


@cases("data", [True, False], every=2)
@cases("pivots", [True, False])
def test_unpacked_factors(data: bool, pivots: bool) -> None:
    for shape in ((2, 4), (4, 2), (3, 2, 4), (3, 4, 2), (2, 3, 3, 3), (0, 3, 3), (2, 3, 0)):
        packed = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        exchanges = torch.linalg.lu_factor(packed)[1]
        check("aten.lu_unpack.default", packed, exchanges, data, pivots, grad=False)
    none = torch.zeros(0, 2, dtype=torch.int32)
    packed = torch.randn(4, 2, 4)
    check("aten.lu_unpack.default", packed, none, data, pivots, grad=False)
    check("aten.lu_unpack.default", packed > 0, none, data, pivots, grad=False)


@pytest.mark.parametrize("shape", [(1, 2), (2,), (5, 2), (4, 3), (4, 1)])
def test_pivots_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """torch's kernel writes past the end for some of them."""
    packed, pivots = jnp.zeros((4, 2, 4)), jnp.ones(shape, jnp.int32)
    lower = load_ops()["aten.lu_unpack.default"].lower
    with pytest.raises(LoweringError, match=r"the pivots have shape .* want \(4, 2\)"):
        lower(packed, pivots)
    assert lower(packed, pivots, unpack_pivots=False)[0].shape == (0,)
