"""Modules of torch whose ``forward`` reads values: the device computes what torch does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samba.tracer.capture import trace_model
from samba.tracer.errors import TraceError
from samba.tracer.inputs import collect_inputs
from samba.tracer.rewrite import static_modules
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome


class _Norms(nn.Module):
    """Cumulative averages, of torch's own class and of one derived from it."""

    def __init__(self) -> None:
        super().__init__()

        class Derived(nn.BatchNorm1d):
            def forward(self, input: torch.Tensor) -> torch.Tensor:
                return super().forward(input) + 1.0

        self.first = nn.BatchNorm1d(5, momentum=None)
        self.second = Derived(5, momentum=None, affine=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.second(self.first(x))
        return (out * torch.linspace(0.3, 1.2, out.numel()).reshape(out.shape)).sum(), out


class _Adaptive(nn.Module):
    def __init__(self, targets: torch.Tensor) -> None:
        super().__init__()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [5, 11], div_value=2.0)
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("targets", targets)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x * self.scale
        result = self.softmax(x, self.targets)
        return result.loss, result.output[None], self.softmax.predict(x[None].reshape(-1, 6))


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_batch_norm_without_momentum_averages_over_all_batches(training, tmp_path):
    inputs = {"x": torch.randn(3, 5, 4)}
    made = train_both(lambda: _Norms().train(training), inputs, tmp_path)
    assert made == (Outcome.EQUAL, "")


def test_an_adaptive_softmax_trains(tmp_path):
    targets = torch.tensor([0, 19, 5, 4, 11, 7, 10])
    made = train_both(lambda: _Adaptive(targets), {"x": torch.randn(7, 6)}, tmp_path)
    assert made == (Outcome.EQUAL, "")


@pytest.mark.slow
def test_an_adaptive_softmax_of_one_row_trains(tmp_path):
    made = train_both(lambda: _Adaptive(torch.tensor(7)), {"x": torch.randn(6)}, tmp_path)
    assert made == (Outcome.EQUAL, "")


def test_a_class_that_an_adaptive_softmax_does_not_have_is_an_error(tmp_path):
    """As in torch, though every cluster is computed for every row."""
    made = train_both(lambda: _Adaptive(torch.tensor([1, 20])), {"x": torch.randn(2, 6)}, tmp_path)
    assert made[0] is Outcome.EQUAL
    assert "out of range" in made[1]


def test_a_module_that_resizes_tensors_is_refused_with_the_module_to_take():
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.CrossMapLRN2d(3))
    with pytest.raises(TraceError, match=r"CrossMapLRN2d resizes.*\n.*LocalResponseNorm"):
        trace_model(model, collect_inputs(model, (torch.randn(1, 2, 3, 3),)))


def test_outside_of_a_trace_the_modules_are_torchs_own():
    forward = nn.AdaptiveLogSoftmaxWithLoss.forward
    softmax = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [5, 11], div_value=2.0)
    x, target = torch.randn(3, 6), torch.tensor([0, 7, 19])
    want = softmax(x, target)
    with static_modules(softmax):
        assert torch.equal(softmax(x, target).output, want.output)
    assert nn.AdaptiveLogSoftmaxWithLoss.forward is forward
