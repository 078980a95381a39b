"""A model that asks whether it is compiled or exported is answered as in eager torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome
from tests.tracing import trace

BEFORE = torch.compiler.is_compiling, torch.compiler.is_exporting

QUESTIONS: dict[str, Callable[[], bool]] = {
    "compiling": lambda: torch.compiler.is_compiling(),
    "exporting": lambda: torch.compiler.is_exporting(),
    "dynamo": lambda: torch._dynamo.is_compiling(),
}


class Asks(nn.Module):
    def __init__(self, question: Callable[[], bool]) -> None:
        super().__init__()
        self.layer, self.question = nn.Linear(3, 2), question

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y.exp() if self.question() else y.sigmoid()).sum()


@pytest.mark.parametrize("question", QUESTIONS)
def test_forward_takes_the_branch_of_eager_torch(question: str) -> None:
    traced = trace(Asks(QUESTIONS[question]), (torch.ones(4, 3),))
    ops = [node.op for node in traced.nodes]
    assert any("sigmoid" in op for op in ops), ops
    assert not any("exp" in op for op in ops), ops
    assert (torch.compiler.is_compiling, torch.compiler.is_exporting) == BEFORE


def test_torch_itself_is_told() -> None:
    """Multi-head attention leaves out its fast path, which is one kernel of torch's."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    traced = trace(Model(), (torch.ones(2, 3, 8),), inference=True)
    assert any("attention" in node.op or "softmax" in node.op for node in traced.nodes)
    assert not any("native_multi_head" in node.op for node in traced.nodes)


def test_a_solver_stays_a_solver(tmp_path) -> None:
    """As in Qwen3-Next, which unrolls 63 steps for exporters."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(
                torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
            )

        def forward(self, x: Tensor) -> Tensor:
            system = self.weight.tril(-1)
            if not torch.compiler.is_exporting():
                return torch.linalg.solve_triangular(
                    system, x, upper=False, unitriangular=True
                ).sum()
            raise AssertionError("this is not an exporter")

    inputs = {"x": torch.randn(5, 3, generator=torch.Generator().manual_seed(1))}
    assert train_both(Model, inputs, tmp_path) == (Outcome.EQUAL, "")
