"""Sums, extremes, truths, variances and norms against torch."""

from __future__ import annotations

import torch
from hypothesis import given, settings, strategies as st

from tests.emulator.ops.checks import check
from tests.emulator.ops.narrow import check_narrow

NAN, INF = float("nan"), float("inf")
G = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 4, generator=G)
TIES = X.round()
WITH_NAN = X.clone()
WITH_NAN[0, 1] = NAN
WITH_NAN[1, 2, 3] = NAN
INTS = TIES.long()
SCALAR = torch.tensor(2.0)
ZEROS = X.clone()
ZEROS[0] = 0
ZEROS[1, 1, 1] = 0


def test_sums() -> None:
    for dim, keepdim in (([0], True), ([0, 2], False), ([], True), (None, False)):
        check("aten.sum.dim_IntList", X, dim, keepdim)
        check("aten.mean.dim", X, dim, keepdim)
    check("aten.sum.dim_IntList", SCALAR, [0], True)
    check("aten.mean.dim", SCALAR, [0], True)
    for name in ("sum", "mean", "nansum"):
        check(f"aten.{name}.default", X)
    check("aten.trace.default", X[0])
    check("aten.nansum.default", WITH_NAN, [2])
    check("aten.nanmean.default", WITH_NAN, [2], True)
    check("aten.sum_to_size.default", X, [3, 1])
    check("aten.sum_to_size.default", X > 0, [3, 1])


def test_dtypes_of_sums() -> None:
    for dtype in (torch.bool, torch.int32, torch.uint8):  # they accumulate in int64
        check("aten.sum.default", (X > 0).to(dtype))
        check("aten.prod.dim_int", (X > 0).to(dtype), 1)
    check("aten.sum.default", X, dtype=torch.float64)
    check("aten.mean.default", INTS, dtype=torch.float32)
    for half in (torch.bfloat16, torch.float16):  # and these in float32
        check_narrow("aten.sum.dim_IntList", torch.randn(4, 300), [1], dtype=half)
        check_narrow("aten.mean.dim", torch.randn(4, 300), [1], dtype=half)


@settings(max_examples=6)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=3, unique=True),
    st.booleans(),
)
def test_sums_of_any_shape(shape: list[int], dims: list[int], keepdim: bool) -> None:
    dims = sorted({d % len(shape) for d in dims})
    check("aten.sum.dim_IntList", torch.randn(shape), dims, keepdim)


def test_products() -> None:
    check("aten.prod.default", X)
    for zeros in (0, 1, 2):
        x = torch.tensor([[1.5, -2.0, 3.0], [2.0, 0.5, 1.0]])
        x[0, :zeros] = 0
        check("aten.prod.default", x)
        check("aten.prod.dim_int", x, 1, True)


def test_of_nothing_and_of_one_number() -> None:
    for shape in ((0,), (0, 3), ()):
        for name in ("sum", "prod", "mean", "any", "all"):
            check(f"aten.{name}.default", torch.ones(shape))


def test_extremes() -> None:
    """Equals share the gradient, or the first of them has it; NaN wins."""
    for name in ("amax", "amin"):
        for dim, keepdim in (([0], True), ([0, 2], False), ([], False)):
            check(f"aten.{name}.default", TIES, dim, keepdim)
    check("aten.amax.default", SCALAR, [0], True)
    check("aten.amax.default", WITH_NAN, -1)
    for x in (X, TIES):
        check("aten.max.default", x)
        check("aten.min.default", x)
    check("aten.max.default", WITH_NAN)
    for name in ("max.dim", "min.dim"):
        check(f"aten.{name}", WITH_NAN, -1)
        check(f"aten.{name}", TIES, 1, True)
        check(f"aten.{name}", INTS, -1)
        check(f"aten.{name}", SCALAR, 0)
    check("aten.aminmax.default", TIES, dim=1)
    check("aten.aminmax.default", WITH_NAN)


def test_places_of_extremes() -> None:
    for name in ("argmax", "argmin"):
        for dim in (None, 0, -1):
            check(f"aten.{name}.default", TIES, dim, True)
    check("aten.argmax.default", WITH_NAN, -1)


def test_truths_and_counts() -> None:
    for name in ("any", "all"):
        check(f"aten.{name}.default", TIES)
        check(f"aten.{name}.dim", INTS, 1, True)
        check(f"aten.{name}.dims", WITH_NAN, [0, 2])
        check(f"aten.{name}.default", torch.tensor([0, 3], dtype=torch.uint8))
    check("aten.count_nonzero.default", TIES)
    check("aten.count_nonzero.dim_IntList", INTS, [0, 1])


def test_variances() -> None:
    for name in ("var", "std", "var_mean", "std_mean"):
        check(f"aten.{name}.correction", X, [0, 2], correction=0, keepdim=True)
        check(f"aten.{name}.correction", X, [-1])
        check(f"aten.{name}.dim", X, [1], False)
        check(f"aten.{name}.default", X)
    # The deviation of a constant has no slope.
    check("aten.std.correction", torch.ones(3, 4), [1])
    check("aten.std_mean.correction", torch.ones(3, 4), [1], correction=0)
    check("aten.var.correction", X.double() + 1e6, [2])
    check_narrow("aten.var.correction", X + 3, [2])
    check_narrow("aten.std.correction", X + 3, [2])


def test_norms() -> None:
    for p in (0, 1, 2, 3, 1.5, INF, -INF):
        check("aten.linalg_vector_norm.default", ZEROS, p, [1, 2], True)
        check("aten.linalg_vector_norm.default", ZEROS, p)
    check("aten.linalg_vector_norm.default", X, 0.5, [-1])
    check("aten.linalg_vector_norm.default", X.bfloat16(), 2, [1], dtype=torch.float32)
    check_narrow("aten.linalg_vector_norm.default", X, 2, [1])
    check("aten.norm.Scalar", X, 3)
    check("aten.norm.ScalarOpt_dim", X, None, [1], True)
    check("aten.norm.ScalarOpt_dtype", X, 2, dtype=torch.float64)
    check("aten.frobenius_norm.dim", X[0], [0, 1], grad=False)
    check("aten.dist.default", X, ZEROS)
    check("aten.dist.default", X, X)
    check("aten.renorm.default", X, 2, 1, 1.0)


def test_logsumexp() -> None:
    check("aten.logsumexp.default", X * 50, [0], True)
    check("aten.logsumexp.default", X * 50, [1, 2], False)
    x = X.clone()
    x[0] = -INF
    x[1, 0] = INF
    check("aten.logsumexp.default", x, [2])
    check("aten.logsumexp.default", torch.arange(4), [0])
    check("aten.logsumexp.default", torch.tensor(2.0), [0])
