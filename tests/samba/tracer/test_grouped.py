"""Grouped products are taken where torch's kernel for the CPU takes them."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samba.tracer.errors import TraceError
from samba.tracer.whole_functions import grouped_mm
from tests.tracing import trace


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def ends(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


TAKEN = [
    (randn(6, 4), randn(2, 4, 8), ends(2, 6)),
    (randn(6, 4), randn(2, 8, 4).mT, ends(2, 6)),
    (randn(8, 8).T, randn(2, 8, 8), ends(2, 8)),
    (randn(2, 6, 4), randn(2, 4, 8), None),
    (randn(2, 6, 4), randn(4, 8), ends(2, 8)),
    (randn(6, 8), randn(8, 4), ends(2, 8)),
    (randn(0, 8), randn(2, 8, 8), ends(0, 0)),
    (randn(6, 8, dtype=torch.float16), randn(2, 8, 8, dtype=torch.float16), ends(2, 6)),
]

REFUSED = [
    ((randn(6, 4), randn(2, 4, 3), ends(2, 6)), {}),
    ((randn(6, 3), randn(2, 3, 4), ends(2, 6)), {}),
    ((randn(6, 1), randn(2, 1, 8), ends(2, 6)), {}),
    ((randn(6, 16)[:, ::2], randn(2, 8, 8), ends(2, 6)), {}),
    ((randn(8, 6).T, randn(2, 8, 8), ends(2, 6)), {}),
    ((randn(6, 4, dtype=torch.float16), randn(2, 4, 8, dtype=torch.float16), ends(2, 6)), {}),
    ((randn(6, 4), randn(2, 4, 8), None), {}),
    ((randn(6, 4), randn(4, 8), None), {}),
    ((randn(2, 6, 4), randn(2, 4, 8), ends(2, 6)), {}),
    ((randn(6, 4), randn(3, 4, 8), ends(2, 6)), {}),
    ((randn(3, 6, 4), randn(4, 8), ends(2, 6)), {}),
    ((randn(6, 4), randn(2, 8, 8), ends(2, 6)), {}),
    ((randn(2, 6, 4), randn(3, 4, 8), None), {}),
    ((randn(4), randn(4, 8), None), {}),
    ((randn(6, 4), randn(2, 4, 8), torch.tensor([2, 6])), {}),
    ((randn(6, 4), randn(2, 4, 8), ends(2, 6)), {"out_dtype": torch.bfloat16}),
]


@pytest.mark.parametrize(("a", "b", "offs"), TAKEN)
def test_what_the_kernel_takes_has_its_form(a: Tensor, b: Tensor, offs: Tensor | None) -> None:
    class Model(nn.Module):
        def forward(self, a: Tensor, b: Tensor, *offs: Tensor) -> Tensor:
            return F.grouped_mm(a, b, offs=offs[0] if offs else None)

    given = (a, b) if offs is None else (a, b, offs)
    traced = trace(Model(), given, inference=True)
    (output,) = traced.outputs
    expected = F.grouped_mm(a, b, offs=offs)
    assert traced.values[output.value].shape == tuple(expected.shape)
    assert torch.equal(grouped_mm(a, b, offs), expected)


@pytest.mark.parametrize(("args", "kwargs"), REFUSED, ids=map(str, count()))
def test_what_the_kernel_refuses_is_refused_in_its_words(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    def said(function: Any) -> str:
        with pytest.raises(RuntimeError) as caught:
            function(args[0], args[1], offs=args[2], **kwargs)
        return str(caught.value)

    assert said(grouped_mm) == said(F.grouped_mm)


def test_float64_is_refused_as_by_the_kernel() -> None:
    class Model(nn.Module):
        def forward(self, a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
            return F.grouped_mm(a, b, offs=offs)

    a, b = randn(6, 4, dtype=torch.float64), randn(2, 4, 8, dtype=torch.float64)
    with pytest.raises(TraceError, match="Expected"):
        trace(Model(), (a, b, ends(2, 6)), inference=True)
