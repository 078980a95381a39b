"""Code that a trace cannot see into is refused with what is true of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from samba.tracer.errors import GradientError, TraceError
from tests.samba.refusals import line_of
from tests.tracing import trace


def scripted() -> Any:
    return torch.jit.script(nn.Linear(4, 4))


def jit_traced() -> Any:
    return torch.jit.trace(nn.Linear(4, 4), torch.zeros(1, 4))


class WithPart(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.part = nn.Linear(4, 4), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.first(x)).sum()


@pytest.mark.parametrize("make", [scripted, jit_traced])
def test_a_module_of_torch_jit_is_named(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that torch.jit is old
        model = WithPart(make())
    with pytest.raises(TraceError, match=r"torch\.jit has scripted or traced part") as caught:
        trace(model, torch.randn(2, 4))
    assert "the module that was given to torch.jit" in str(caught.value)


class Reversible(torch.autograd.Function):
    """Computes its input again in the backward pass, as reversible layers do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x.detach(), weight)
        return x * weight

    @staticmethod
    def backward(ctx, *gradients):
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(x * weight, gradients[0])  # asks
        return x.grad, None


class OfReversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Reversible.apply(x * self.w, self.w).sum()


def test_a_backward_that_asks_for_gradients_is_named_with_its_line() -> None:
    with pytest.raises(GradientError, match=r"Reversible.backward calls backward\(\)") as caught:
        trace(OfReversible(), torch.randn(2, 4))
    assert line_of(__file__, "asks") in str(caught.value)
    assert caught.value.deviation == "untraced-backward"


class ByLayer(torch.autograd.Function):
    """Asks the layer, as reversible layers ask for the seeds that their forward has drawn."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x * layer.scale

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0] * ctx.layer.scale, None


class OfByLayer(OfReversible):
    scale = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = 3.0
        return ByLayer.apply(x * self.w, self).sum()


def test_a_backward_finds_what_forward_has_left() -> None:
    model = OfByLayer()
    traced = trace(model, torch.ones(2, 4))
    numbers = [arg for part in traced.gradients for n in part.nodes for arg in n.args[1:]]
    assert numbers == [3.0] and model.scale == 0.0


class Doubling(torch.Tensor):
    """Its products are twice torch's."""

    def __mul__(self, other: Any) -> Any:
        return super().__mul__(other) * 2


class Looking(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Named(nn.Parameter):
    """Computes as torch's, and has a text of its own."""

    def __format__(self, spec: str) -> str:
        return "named"

    def described(self) -> str:
        return f"{tuple(self.shape)}"


class Holding(nn.Module):
    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held * x


@pytest.mark.parametrize(
    ("held", "name"),
    [
        (torch.ones(4).as_subclass(Doubling), "__mul__"),
        (Looking(torch.ones(4)), "__torch_function__"),
    ],
)
def test_a_class_that_computes_otherwise_is_named(held: torch.Tensor, name: str) -> None:
    model = nn.Sequential(Holding(held))
    with pytest.raises(TraceError, match=rf"{type(held).__name__} overrides {name}") as caught:
        trace(model, torch.ones(2, 4))
    assert caught.value.where == "model sequential, 0.held"


def test_a_class_that_computes_as_torchs_is_taken() -> None:
    assert trace(Holding(Named(torch.ones(4))), torch.ones(2, 4)).outputs
