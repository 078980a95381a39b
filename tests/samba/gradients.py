"""A model with gradients of its own, trained by torch and on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba import utils
from samba.tracer import trace_cache
from samba.tracer.errors import GradientError
from samba.tracer.inputs import collect_inputs
from tests.samba.worlds import close

STEPS = 3
LEVELS = (("o0",), pytest.param(("o1", "o3"), marks=pytest.mark.slow))
"""How a model is cut into sections: one for each operation, for several, and for all."""


class Base(nn.Module):
    """Three stages and a mean square; subclasses say what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.middle = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def between(self, h: torch.Tensor) -> torch.Tensor:
        return self.middle(h)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.last(self.between(self.first(x))) - y).square().mean()


class Between(Base):
    """Has a function of itself and of what lies between its stages."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def between(self, h: torch.Tensor) -> torch.Tensor:
        return self.function(self, h)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(step)
    return torch.randn(6, 4, generator=chance), torch.randn(6, 4, generator=chance)


def given(step: int = 0) -> tuple[samba.SambaTensor, ...]:
    return tuple(samba.from_torch_tensor(t, name=n) for n, t in zip("xy", batch(step), strict=True))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def compiled(model: nn.Module, folder: Path, **config: Any) -> str:
    samba.from_torch_model_(model)
    config = {"output_folder": str(folder), "pef_name": "net", **config}
    return samba.session.compile(model, given(), sgd(model), config_dict=config)


def refused(model: nn.Module, folder: Path, text: str, deviation: str) -> GradientError:
    """The error by which a compile refuses a model, with a text and the name of its deviation."""
    with pytest.raises(GradientError, match=text) as caught:
        compiled(model, folder)
    assert caught.value.deviation == deviation
    return caught.value


def follow_torch(
    make: Callable[[], nn.Module],
    folder: Path,
    levels: Sequence[str] = ("o3",),
    prepare: Callable[[nn.Module], object] = lambda model: None,
    *,
    again: bool = True,
) -> nn.Module:
    """Train both for some steps, and compare losses and weights.

    Args:
        make: Makes the model.
        folder: Where a folder for the PEF of each level goes.
        levels: How it is cut into sections; the model is trained again for each.
        prepare: What is done to a model before it is compiled.
        again: Whether no PEF is loaded with the trace it was made from: the trace of another
            process is that of the PEF, and so is that of another compile.

    Returns:
        The model on the device.
    """
    torch.manual_seed(1)
    host = make()
    torch.manual_seed(1)
    model = make()
    for each in (host, model):
        prepare(each)
    start = copy.deepcopy(model.state_dict())
    losses = _trained(host)
    pefs, traces = [], []
    for level in levels:
        pefs.append(compiled(model, folder / level, optim_level=level))
        traces.append(trace_cache._kept.pop(model, None))
    others = [None] if again and len(traces) == 1 else traces[::-1]
    for pef, trace in zip(pefs, others, strict=True):
        samba.session.reset()
        model.load_state_dict(start)
        if trace is not None:
            # A load leaves marks in the model; the graph is that of the model without them.
            key = trace_cache._key(model, collect_inputs(model, given()), inference=False)
            trace_cache._kept[model] = replace(trace, key=key)
        utils.trace_graph(model, given(), sgd(model), pef=pef)
        for step, wanted in enumerate(losses):
            found = samba.session.run(given(step), model.output_tensors)
            # The last first: the losses of several models tell which of them is wrong.
            for ours, theirs in reversed([*zip(found, wanted, strict=True)]):
                close(ours, theirs, f"step {step}")
        samba.session.to_cpu(model)
        for path, weight in host.named_parameters():
            close(model.get_parameter(path), weight.detach(), path)
    return model


def _trained(host: nn.Module) -> list[list[torch.Tensor]]:
    """Results of some steps in plain torch; the first of each is the loss."""
    optimizer = sgd(host)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        found = host(*batch(step))
        results = found if isinstance(found, tuple) else (found,)
        results[0].backward()
        optimizer.step()
        losses.append([result.detach() for result in results])
    return losses
