"""Checkpoints and autograd functions of two tensors, of which none, one or both need gradients.

What stands around them is trained as torch trains it: a layer before, a layer behind, and the
parameters that they use.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.sweeps.both_sides import sweep_together
from tests.sweeps.tally import Tally

Two = Callable[["Around", torch.Tensor, torch.Tensor], torch.Tensor]


class Product(torch.autograd.Function):
    """A product whose gradients are others than torch's, each only where it is asked for."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(p, q)
        return p * q

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as scripts write it
        p, q = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        return grad * q * 2 if first else None, grad * p * 3 if second else None


class Ungraded(Product):
    """Turns gradients off once more in its forward."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(p, q)
        with torch.no_grad():
            return p * q


class Differentiating(Product):
    """Computes a derivative in its forward, with gradients turned on."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(p, q)
        with torch.enable_grad():
            inner = p.detach().requires_grad_()
            (slope,) = torch.autograd.grad((inner**3).sum(), inner)
        return slope + q


class TurningBack(Product):
    """Turns gradients on in its backward, and off."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        p, q = ctx.saved_tensors
        with torch.enable_grad():
            inner = p.detach().requires_grad_()
            (slope,) = torch.autograd.grad((inner * inner).sum(), inner)
        with torch.no_grad():
            scaled = grad * 0.5
        return scaled * slope, scaled * q


class OneSided(Product):
    """Gives its second input no gradient at all."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        _, q = ctx.saved_tensors
        return grad * q, None


class TwoResults(torch.autograd.Function):
    """Has a result with and one without a gradient, and one that nobody reads."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, q: torch.Tensor) -> Any:
        flat = q.square()
        ctx.mark_non_differentiable(flat)
        ctx.save_for_backward(p)
        return p.sin(), flat, q.cos()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *others: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as scripts write it
        (p,) = ctx.saved_tensors
        return grad * p.cos(), others[-1] + grad


class SetUp(torch.autograd.Function):
    """Is written in the form with ``setup_context``, and has no use for its second input."""

    @staticmethod
    def forward(p: torch.Tensor, q: torch.Tensor, scale: float) -> torch.Tensor:
        return p * scale + q

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.scale = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as scripts write it
        return grad * ctx.scale, None, None


def _checkpointed(run: Two, **options: Any) -> Two:
    return lambda around, p, q: checkpoint(
        lambda p, q: run(around, p, q), p, q, use_reentrant=True, **options
    )


def _own(around: Around, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return around.inner(p) * q.cos()


def _keeps_one(around: Around, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    first, held = checkpoint(
        lambda p, q: (around.inner(p), {"q": [around.inner(q)]}), p, q, use_reentrant=True
    )
    return first * held["q"][0]


def _takes_a_list(around: Around, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda q, ps: around.inner(ps[0]) + q, q, [p * 2], use_reentrant=True)


def _detached_result(around: Around, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    first, second = checkpoint(
        lambda p, q: (around.inner(p), around.inner(q).detach()), p, q, use_reentrant=True
    )
    return first * second


WAYS: dict[str, Two] = {
    "checkpoint": _checkpointed(_own),
    "checkpoint without random state": _checkpointed(_own, preserve_rng_state=False),
    "checkpoint in a checkpoint": _checkpointed(_checkpointed(_own)),
    "checkpoint of the first alone": lambda around, p, q: (
        checkpoint(around.inner, p, use_reentrant=True) * q
    ),
    "two checkpoints": lambda around, p, q: _checkpointed(_own)(around, q, p) + _own(around, p, q),
    "checkpoint with a nested result": _keeps_one,
    "checkpoint with a nested input": _takes_a_list,
    "checkpoint with a detached result": _detached_result,
    "checkpoint of a function": _checkpointed(lambda around, p, q: Ungraded.apply(p, q)),
    "checkpoint that keeps": lambda around, p, q: checkpoint(
        lambda p, q: _own(around, p, q), p, q, use_reentrant=False
    ),
    "function": lambda around, p, q: Product.apply(p, q),
    "function without gradients inside": lambda around, p, q: Ungraded.apply(p, q),
    "function that differentiates": lambda around, p, q: Differentiating.apply(p, q),
    "function that turns gradients on": lambda around, p, q: TurningBack.apply(p, q),
    "function with one gradient": lambda around, p, q: OneSided.apply(p, q),
    "function with a result apart": lambda around, p, q: (
        TwoResults.apply(p, q)[0] * TwoResults.apply(q, p)[1]
    ),
    "function set up": lambda around, p, q: SetUp.apply(p, q, 2.0),
    "function of a function": lambda around, p, q: Product.apply(Ungraded.apply(p, q), q),
}

NEEDS = ("neither", "first", "second", "both")


class Around(nn.Module):
    """A layer before and one behind, and a parameter that is used in several places."""

    def __init__(self, way: str, needs: str, *, ungraded: bool) -> None:
        super().__init__()
        self.before, self.inner, self.behind = (nn.Linear(3, 3) for _ in range(3))
        self.way, self.needs, self.ungraded = way, needs, ungraded

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = self.before(x) if self.needs in ("first", "both") else x
        q = self.before(y) * self.inner.bias if self.needs in ("second", "both") else y
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.ungraded):
            found = WAYS[self.way](self, p, q)
        return (self.behind(found) + self.before(found) * 0.1).square().mean()


def _given() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(2, 3, generator=generator) for name in "xy"}


def _cases() -> Iterator[tuple[str, str, bool]]:
    for way, needs in itertools.product(WAYS, NEEDS):
        yield way, needs, False
        if needs == "both":
            yield way, needs, True


SLICE = (
    ("checkpoint of the first alone", "neither", False),
    ("function that turns gradients on", "first", False),
)


def _sweep(cases: list[tuple[str, str, bool]], folder: Path) -> Tally:
    tally = Tally("gradient needs")
    named = {
        f"{way}, {needs}{', under no_grad' if ungraded else ''}": functools.partial(
            Around, way, needs, ungraded=ungraded
        )
        for way, needs, ungraded in cases
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
        sweep_together(tally, named, _given(), folder, lr=0.02)
    return tally


def test_a_few_of_them(tmp_path):
    _sweep(list(SLICE), tmp_path).close(at_least=len(SLICE))


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_code")
def test_all_of_them(tmp_path):
    cases = list(_cases())
    _sweep(cases, tmp_path).close(at_least=len(cases))
