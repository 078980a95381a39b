"""The sweeps' own parts bite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome, Tally


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("seen", torch.zeros(()))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1.0)
        return (self.w * x).square().sum() * self.seen


class _Branching(_Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else self.w.sum()


INPUTS = {"x": torch.tensor([0.5, -0.25])}


def test_a_model_that_is_torchs_is_equal(tmp_path):
    assert train_both(_Scaled, INPUTS, tmp_path) == (Outcome.EQUAL, "")


def test_a_refusal_is_named(tmp_path):
    outcome, text = train_both(_Branching, INPUTS, tmp_path)
    assert outcome is Outcome.NAMED, text


def test_a_wrong_number_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.sweeps.both_sides._device_steps", lambda *args: _planted(*args))
    outcome, text = train_both(_Scaled, INPUTS, tmp_path)
    assert outcome is Outcome.SILENT
    assert "instead of" in text


def _planted(model: nn.Module, inputs, steps, lr, config, runs) -> dict[str, torch.Tensor]:
    from tests.sweeps import both_sides

    found, _ = both_sides._host_steps(model, inputs, steps, lr)
    found["w"] += 1e-3
    return found


def test_a_silent_case_fails_the_sweep_and_so_does_an_empty_one():
    tally = Tally("planted")
    tally.add("one", Outcome.EQUAL)
    tally.close(at_least=1)
    with pytest.raises(AssertionError):
        tally.close(at_least=2)
    tally.add("two", Outcome.SILENT, "0.1 instead of 0.2")
    with pytest.raises(AssertionError, match=r"equal 1, named 0, silent 1\ntwo: 0.1 instead"):
        tally.close(at_least=1)
