"""Types that torch's kernels refuse and its exporter passes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from samba.tracer.errors import DtypeMismatch, TraceError
from tests.tracing import trace

Tensor = torch.Tensor
L = torch.linalg


class Calling(torch.nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        *(L.det, torch.det, L.cholesky, L.qr, L.svdvals, L.eigh, L.lu, L.cond, torch.svd),
        *(F.pdist, lambda x: L.solve(x, x), lambda x: torch.cdist(x, x)),
        lambda x: torch.cdist(x.repeat(9, 1), x, p=1.0),
        *(lambda x: torch.cdist(x, x, p=1.0), lambda x: L.solve_triangular(x, x, upper=True)),
    ],
)
def test_linear_algebra_in_16_bits_is_refused_as_torch_does(function, kind):
    x = torch.eye(3, dtype=kind)
    with pytest.raises(NotImplementedError) as wanted:
        function(x)
    with pytest.raises(DtypeMismatch) as caught:
        trace(Calling(function), (x,))
    assert str(wanted.value).split('" ')[1] in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        *(L.matrix_norm, L.matrix_exp, lambda x: torch.cdist(x, x[:0])),
        lambda x: torch.cdist(x.repeat(9, 1), x),
        lambda x: torch.cdist(x, x.repeat(9, 1), 2.0),
        lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
    ],
)
def test_what_torch_computes_in_16_bits_is_taken(function):
    x = torch.eye(3, dtype=torch.bfloat16)
    function(x)
    trace(Calling(function), (x,))


def test_autocast_makes_them_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traced = trace(Calling(lambda x: torch.cdist(x @ x, x)), (torch.eye(3),))
    assert "aten.cdist.default" in [node.op for node in traced.nodes]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_bools_are_not_padded_with_what_is_there(mode):
    x = torch.ones(1, 1, 3, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        F.pad(x, (1, 1), mode)
    with pytest.raises(TraceError, match="not implemented for 'Bool'") as caught:
        trace(Calling(lambda x: F.pad(x, (1, 1), mode)), (x,))
    assert f"{__file__}:" in str(caught.value)
