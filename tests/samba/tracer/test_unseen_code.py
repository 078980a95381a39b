"""Code that a trace cannot see into is refused with what is true of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from samba.tracer.changed_state import ChangedAttributes
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


class Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2


class OfPassing(OfReversible):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * self.w
        y = Passing.apply(h)
        h.add_(1)
        return y.sum()


def test_a_change_of_what_a_function_passes_on_is_told_in_torch_s_words() -> None:
    with pytest.raises(TraceError, match="Output 0 of Passing is a view") as caught:
        trace(OfPassing(), torch.randn(2, 4))
    assert "torch.autograd.grad" not in str(caught.value)


class OfPassed(OfReversible):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Passing.apply(x * self.w).add_(1).sum()  # changes what is passed on


def test_a_change_of_what_a_function_has_passed_on_is_refused_as_in_torch() -> None:
    with pytest.raises(RuntimeError, match="is a view and is being modified"):
        OfPassed()(torch.randn(2, 4))
    with pytest.raises(GradientError, match="is its input or a view of it") as caught:
        trace(OfPassed(), torch.randn(2, 4))
    assert line_of(__file__, "changes what is passed on") in str(caught.value)
    assert caught.value.deviation == "function-in-place"


class OfScripted(OfReversible):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.function(x * self.w)).sum()


def test_a_scripted_function_keeps_its_gradient_from_call_to_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that torch.jit is old
        model = OfScripted(torch.jit.script(doubled))
    for _ in range(2):
        model(torch.ones(2, 4)).backward()
    ops = [node.op for node in trace(model, torch.ones(2, 4)).nodes]
    assert ops == ["aten.mul.Tensor"] * 3 + ["aten.sum.default"]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_scripted_function_without_python_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit = torch.jit.CompilationUnit("def doubled(x):\n    return x * 2\n")
    with pytest.raises(TraceError, match=r"doubled is a function of torch\.jit") as caught:
        trace(OfScripted(unit.doubled), torch.ones(2, 4))
    assert f"at {__file__}" in str(caught.value) or str(caught.value).startswith(__file__)


class Counting(torch.autograd.Function):
    """Its class, its gradient and its hook change what the next backward pass reads."""

    n = 0

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, *gradients):
        Counting.n += 1
        return gradients[0] * Counting.n


class Stateful(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.w, self.act = nn.Parameter(torch.ones(4)), nn.Tanh()
        self.kind, self.n, self.last = kind, 0, None
        if kind == "hook of a parameter":
            self.w.register_hook(lambda g: self.counted() * g)
        if kind == "hook of a module":
            self.act.register_full_backward_hook(lambda m, g, _: (g[0] * self.counted(),))
        if kind == "a tensor":
            self.act.register_full_backward_hook(lambda m, g, _: (self.summed(g[0]),))

    def counted(self) -> int:
        self.n += 1
        return self.n

    def summed(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient if self.last is None else gradient + self.last
        self.last = gradient.detach()
        return gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(x * self.w)
        if self.kind == "hook of a tensor":
            h.register_hook(lambda g: self.counted() * g)
        return (Counting.apply(h) if self.kind == "class" else h).sum()


STATES = {
    **dict.fromkeys(("hook of a parameter", "hook of a module", "hook of a tensor"), "n: 0 -> 1"),
    "class": "Counting.n: 0 -> 1",
    "a tensor": "last: None -> a tensor",
}


@pytest.mark.parametrize("kind", STATES)
def test_state_of_a_backward_pass_is_looked_at(kind: str) -> None:
    model = Stateful(kind)
    with pytest.raises(ChangedAttributes) as caught:
        trace(model, torch.randn(2, 4))
    assert STATES[kind] in str(caught.value)
    assert (model.n, model.last) == (0, None)


class Assigning(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, model):
        ctx.model = model
        return x * 1

    @staticmethod
    def backward(ctx, *gradients):
        ctx.model.seen = ctx.model.seen + gradients[0].sum()
        return gradients[0], None


class OfAssigning(OfReversible):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Assigning.apply(x * self.w * self.seen, self).sum()


def test_a_buffer_that_a_backward_pass_assigns_is_refused() -> None:
    model = OfAssigning()
    before = model.seen
    with pytest.raises(GradientError, match="a hook assigns seen") as caught:
        trace(model, torch.randn(2, 4))
    assert caught.value.deviation == "backward-changes-state" and model.seen is before


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
