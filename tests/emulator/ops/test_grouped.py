"""Grouped products against torch; torch wants rows of multiples of 16 bytes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import check, to_jax

NAME = "aten._grouped_mm.default"


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def ends(*rows: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


OFFSETS = [(2, 2, 12), (0, 5, 12), (12, 12, 12)]


@pytest.mark.parametrize("offs", OFFSETS)
def test_rows_by_group(offs: tuple[int, ...]) -> None:
    check(NAME, data(12, 8), data(3, 8, 4), ends(*offs), frozen=(2,))


@pytest.mark.parametrize("offs", OFFSETS[:1])
def test_columns_and_sums_by_group(offs: tuple[int, ...]) -> None:
    check(NAME, data(3, 8, 4), data(4, 12), ends(*offs), frozen=(2,))
    check(NAME, data(8, 12), data(12, 4), ends(*offs), frozen=(2,))


def test_batches_and_narrow_types() -> None:
    check(NAME, data(3, 8, 4), data(3, 4, 8))
    half = torch.bfloat16
    check(NAME, data(12, 8, dtype=half), data(3, 8, 8, dtype=half), ends(1, 7, 12), frozen=(2,))


def test_rows_after_the_last_group_are_zero_and_another_groups_nan_stays_there() -> None:
    weight = data(3, 8, 4)
    weight[1] = torch.nan
    lower = jax.jit(load_ops()["transformers.grouped_mm_fallback.default"].lower)
    x = data(12, 8)
    with jax.enable_x64(True):
        y = np.asarray(lower(to_jax(x), to_jax(weight), to_jax(ends(2, 5, 9).long())))
    assert np.isnan(y[2:5]).all()
    assert (y[9:] == 0).all()
    np.testing.assert_allclose(y[:2], (x[:2] @ weight[0]).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y[5:9], (x[5:9] @ weight[2]).numpy(), rtol=1e-5, atol=1e-5)
