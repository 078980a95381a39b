"""``module.to(...)`` in ``forward``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from samba.tracer.errors import TraceError
from tests.tracing import trace


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.classifier = self.classifier.to(torch.float32)
        return self.classifier(x.float()).softmax(-1)


def test_a_move_that_changes_nothing_is_none() -> None:
    model = Router()
    before = nn.Module._apply
    traced = trace(model, torch.randn(2, 4))
    assert [s.path for s in traced.sources if s.path] == ["classifier.weight", "classifier.bias"]
    assert [node.op for node in traced.nodes] == ["aten.linear.default", "aten.softmax.int"]
    assert nn.Module._apply is before
    assert model.to(torch.float64).classifier.weight.dtype == torch.float64


def test_a_move_that_changes_a_dtype_is_refused() -> None:
    model = Router().to(torch.bfloat16)
    with pytest.raises(TraceError, match=r"weight from torch.bfloat16 to torch.float32") as caught:
        trace(model, torch.randn(2, 4))
    assert caught.value.where.startswith(f"{__file__}:")
    assert "module classifier" in caught.value.where
    assert model.classifier.weight.dtype == torch.bfloat16
