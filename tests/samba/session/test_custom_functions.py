"""``torch.autograd.Function``: the device runs the ``backward`` that a model brings along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import samba
from pef_schema import read_pef
from samba import utils
from samba.session.check_pef import GraphMismatch
from samba.tracer import trace_cache
from tests.samba.gradients import (
    LEVELS,
    Base,
    Between,
    batch,
    compiled,
    follow_torch,
    given,
    refused,
    sgd,
)
from tests.samba.session.loading import load
from tests.samba.worlds import Together, close, named


class ClippedSign(Function):
    """A saved tensor, a number on ctx, a change in place, and no linearity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        gradient = grads[0].clone()
        gradient[x.abs() > ctx.limit] = 0
        return gradient.clamp(-0.01, 0.02), None


clipped_sign = ClippedSign.apply
"""Bound before anything is traced, as most scripts do it."""


class SavesItsOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator has no types
        return grads[0] * ctx.saved_tensors[0] * 0.5


class WithSetupContext(Function):
    """Forward apart, several outputs, one without gradient, and needs_input_grad."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, k: float = 2.0) -> Any:
        return x * w * k, x > 0, x.floor()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, ctx.k = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, w, mask = ctx.saved_tensors
        for_x = grads[0] * w * ctx.k * mask if ctx.needs_input_grad[0] else None
        for_w = (grads[0] * x).sum(0) * 3 if ctx.needs_input_grad[1] else None
        return for_x, for_w, None


class TwoOfTwo(Function):
    """Several inputs and outputs; one input gets None."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        ctx.save_for_backward(b)
        return a * b, a + b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (grads[0] * ctx.saved_tensors[0]).clamp(-0.1, 0.1) + grads[1], None


class NotMaterialized(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        assert grads[0] is not None
        return grads[0] * 5 if grads[1] is None else grads[0] * 2 + grads[1] * 3


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return -0.3 * grads[0]


def sign(model: Any, h: Tensor) -> Tensor:
    return model.middle(clipped_sign(h, 1.0)) + clipped_sign(h, 0.5)


class Scaled(Base):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, mask, floor = WithSetupContext.apply(self.first(x), self.w)
        without, _, _ = WithSetupContext.apply(x, self.w)
        return (self.last(h * mask + without + floor) - y).square().mean()


def two_inputs(model: Any, h: Tensor) -> Tensor:
    a, b = TwoOfTwo.apply(h, model.middle(h))
    return a + b.tanh()


def both_outputs_used(model: Any, h: Tensor) -> Tensor:
    a, b = NotMaterialized.apply(h)
    return model.middle(a) * b


def on_a_parameter(model: Any, h: Tensor) -> Tensor:
    weight = Reversed.apply(model.middle[0].weight)
    return F.linear(Reversed.apply(h), weight) + model.middle(h)


def without_gradients(model: Any, h: Tensor) -> Tensor:
    """Under no_grad, and on what requires none, a function has no backward."""
    with torch.no_grad():
        apart = clipped_sign(model.middle(h), 1.0)
    return h * apart + SavesItsOutput.apply(h.detach())


def checkpointed(model: Any, h: Tensor) -> Tensor:
    h = checkpoint(lambda t: SavesItsOutput.apply(model.middle(t)), h, use_reentrant=False)
    return checkpoint(lambda t: clipped_sign(model.middle[0](t), 2.0), h, use_reentrant=True)


class Outer(Function):
    """A function within a function's forward and backward is part of these."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Reversed.apply(x) * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return Reversed.apply(grads[0]).abs()


FORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a sign": sign,
    "an output saved": lambda m, h: SavesItsOutput.apply(m.middle(h)),
    "two inputs": two_inputs,
    "one output unused": lambda m, h: NotMaterialized.apply(h)[0],
    "both outputs used": both_outputs_used,
    "on a parameter": on_a_parameter,
    "without gradients": without_gradients,
    "checkpointed": checkpointed,
    "nested": lambda m, h: m.middle(Outer.apply(h)),
}


@pytest.mark.parametrize("levels", LEVELS, ids="-".join)
def test_the_device_runs_the_backward_of_a_function(levels: tuple[str, ...], tmp_path):
    def make() -> nn.Module:
        return Together({"scaled": Scaled(), **{name: Between(f) for name, f in FORMS.items()}})

    follow_torch(make, tmp_path, levels, again=len(levels) > 1)


def test_calls_of_one_function_share_a_gradient(tmp_path):
    model = Between(lambda _, h: clipped_sign(clipped_sign(clipped_sign(h, 1.0), 1.0), 2.0))
    (graph,) = read_pef(compiled(model, tmp_path)).graphs
    assert [gradient.name for gradient in graph.gradients] == ["ClippedSign.backward"] * 2
    assert graph.gradients[0].source.startswith(f"{__file__}:")
    used = [graph.gradient_of(node) for node in graph.nodes]
    assert [g for g in used if g is not None] == [*graph.gradients[:1] * 2, graph.gradients[1]]


def test_a_function_on_an_input_that_requires_a_gradient(tmp_path):
    class OnInput(Base):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(clipped_sign(x, 1.0), y)

    model = OnInput()
    x, y = batch(0)
    x.requires_grad_()
    model(x, y).backward()
    samba.from_torch_model_(model)
    inputs = named({"x": x.detach().clone(), "y": y.clone()})
    inputs[0].requires_grad_()
    load(model, inputs, tmp_path, sgd(model))
    samba.session.run(inputs, model.output_tensors, section_types=["fwd", "bckwd"])
    assert x.grad is not None
    close(inputs[0].sn_grad, x.grad)


def test_random_numbers_in_backward_come_from_the_device(tmp_path):
    noisy = function(lambda ctx, grad: torch.ones_like(grad) * torch.rand_like(grad))
    model = Between(lambda _, h: noisy.apply(h))
    pef = compiled(model, tmp_path)
    utils.trace_graph(model, given(), sgd(model), pef=pef)
    seen = []
    for _ in range(2):
        samba.session.run(given(), model.output_tensors, section_types=["fwd", "bckwd"])
        seen.append(samba.to_torch(model.first.bias.sn_grad).clone())
    assert not torch.equal(*seen)
    assert all(0 < float(mean) < 6 for gradient in seen for mean in gradient)  # of 6 rows


def test_another_backward_is_another_graph(tmp_path):
    factors = [2.0]
    scaling = function(lambda ctx, grad: grad * factors[0])
    model = Between(lambda _, h: scaling.apply(h))
    pef = compiled(model, tmp_path)
    trace_cache._kept.clear()
    factors[0] = 3.0
    with pytest.raises(GraphMismatch, match=r"its gradient, node 0") as caught:
        utils.trace_graph(model, given(), sgd(model), pef=pef)
    assert "2.0" in str(caught.value)
    assert "3.0" in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "cast"),
    [
        ("mp4", "nearest_even"),
        ("mp1", "stochastic"),
        pytest.param("mp1", "nearest_even", marks=pytest.mark.slow),
        pytest.param("mp4", "stochastic", marks=pytest.mark.slow),
    ],
)
def test_a_backward_rounds_where_the_arithmetic_does(preset: str, cast: str, tmp_path):
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return grads[0] @ w.T, x.T @ grads[0]

    between = lambda self, h: Product.apply(h, self.middle[0].weight)  # noqa: E731
    model = Between(between)
    pef = compiled(model, tmp_path, graphamp_preset=preset, bf16_cast=cast)
    (gradient,) = read_pef(pef).graphs[0].gradients
    assert sum(node.op.startswith("samba.cast_bf16") for node in gradient.nodes) >= 3
    utils.trace_graph(model, given(), sgd(model), pef=pef)
    samba.session.run(given(), model.output_tensors, section_types=["fwd", "bckwd"])
    host = Between(between)
    host.load_state_dict({k: samba.to_torch(v) for k, v in model.state_dict().items()})
    host(*batch(0)).backward()
    for path, weight in host.named_parameters():
        if weight.grad is not None:
            found = samba.to_torch(model.get_parameter(path).sn_grad)
            # Some ten roundings in a row, each of up to 2**-8; the roundings are counted above.
            assert torch.allclose(found, weight.grad, rtol=0.1, atol=2e-2), path


def function(backward: Any, forward: Any = lambda ctx, x: x * 1) -> type[Function]:
    return type(
        "Mine", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def in_place(ctx: Any, x: Tensor) -> Tensor:
    ctx.mark_dirty(x)
    return x.mul_(2)


def branching(ctx: Any, grad: Tensor) -> Tensor:
    return grad if grad.sum() > 0 else -grad


class Mapped(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


def gradient_of_a_function(model: Any, h: Tensor) -> Tensor:
    (inner,) = torch.autograd.grad(clipped_sign(h, 1.0).sum(), h)
    return inner + h


def counting(model: Any, h: Tensor) -> Tensor:
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        model.seen.add_(grad.sum(0))
        return grad

    return function(backward).apply(h)


def halving_what_is_saved(model: Any, h: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        return model.middle(h)


def applied(*functions: Any) -> Callable[[Any, Tensor], Tensor]:
    """Apply a function that is made of these."""
    return lambda _, h: function(*functions).apply(h)


REFUSED: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "Mine.branching cannot be traced": ("untraced-backward", applied(branching)),
    "incorrect number of gradients": ("untraced-backward", applied(lambda ctx, g: (g, g))),
    "numpy": ("untraced-backward", applied(lambda ctx, g: torch.from_numpy(g.numpy()))),
    "Mine changes its input": ("function-in-place", applied(lambda ctx, g: g, in_place)),
    "Mapped is applied under": (
        "transformed-function",
        lambda _, h: torch.vmap(Mapped.apply)(h),
    ),
    "differentiates through": ("inner-custom-gradient", gradient_of_a_function),
    "changes a buffer": ("backward-changes-state", counting),
    "saved_tensors_hooks": ("saved-tensors-hooks", halving_what_is_saved),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_traced_is_refused_by_name(text: str, tmp_path):
    deviation, between = REFUSED[text]
    model = Between(between)
    model.register_buffer("seen", torch.zeros(4))
    assert refused(model, tmp_path, text, deviation).where.startswith(f"{__file__}:")


def test_the_comparison_knows_the_backward_of_a_function():
    found = utils.compare(Between(sign), batch(0))
    assert found.ok, str(found)
