"""An optimizer with real and complex weights: torch's takes the two parts of these for two."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from emulator.plans.steps import all_steps
from samba.tensor.views import view_as_numpy, view_as_torch
from tests.emulator.lowering.test_update_rules import load


class Both(nn.Module):
    """A real and a complex weight of one shape, in either order."""

    a: Tensor
    b: Tensor

    def __init__(self, *, real_first: bool) -> None:
        super().__init__()
        weights = {"a": torch.tensor([0.5, -1.0]), "b": torch.tensor([0.3 + 0.8j, -0.6 + 0.1j])}
        for name in ("a", "b") if real_first else ("b", "a"):
            setattr(self, name, nn.Parameter(weights[name].clone()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a * x).square().sum() + (self.b * x).abs().square().sum()


@pytest.mark.parametrize("real_first", [True, False])
@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_real_and_complex_weights_of_one_optimizer(
    cls: type[torch.optim.Optimizer], real_first: bool
) -> None:
    model, x = Both(real_first=real_first), torch.tensor([0.7, -0.4])
    optimizer = cls(model.parameters(), lr=0.1)
    device, program = load(model, x, optimizer)
    device.write(device.region_of("x"), view_as_numpy(x))
    plan = device.plan(all_steps(program))
    for _ in range(3):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        device.run(plan)
    for name, parameter in model.named_parameters():
        got = view_as_torch(device.read(device.region_of(f"both__{name}")))
        torch.testing.assert_close(got, parameter.detach(), rtol=2e-6, atol=1e-6)
