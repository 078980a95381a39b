"""A compiled model is not traced again, unless its key says that something has changed."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import samba
from pef_schema.program import Role
from samba import utils
from samba.session.check_pef import GraphMismatch
from samba.tracer import trace_cache
from samba.tracer.inputs import collect_inputs
from samba.tracer.traced import Traced
from tests.samba.session.loading import load
from tests.tracing import counted_traces

SIGN = 1.0
X = torch.randn(2, 4)


class Config:
    def __init__(self, bias: float) -> None:
        self.bias = bias


class Part(nn.Linear):
    shift = 1.0

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.shift


class Net(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.part = Part(4, 4)
        self.norm = nn.LayerNorm(4)
        self.factors = [1.0, 2.0]
        self.settings = {"names": ("a", "b"), "dtype": torch.float32, "seen": {1, 2}}
        self.config = Config(bias=0.5)
        self.table = torch.ones(4)
        self.register_buffer("mask", torch.ones(4))
        self.head: Callable[[Tensor], Tensor] = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.part(x)) * self.factors[1] + self.table * self.mask + self.config.bias
        return self.head(-y if SIGN < 0 else y).sum()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every trace."""
    return counted_traces(monkeypatch)


def compiled(model: nn.Module, *, inference: bool = False) -> Traced:
    given = collect_inputs(model, X)
    keep = trace_cache.keeper_of_trace(model, given, inference=inference)
    traced = trace_cache.trace_model(model, given, inference=inference)
    keep(traced)
    return traced


def again(model: nn.Module, x: Any = X, *, inference: bool = False, root: str = "net") -> Traced:
    given = collect_inputs(model, x)
    return trace_cache.trace_again(model, given, inference=inference, root=root, rates=())


def test_an_unchanged_model_is_traced_once(traces: list[Any]) -> None:
    model = Net()
    first = compiled(model)
    other = torch.zeros(2, 4)
    with torch.no_grad():
        model.part.weight.mul_(2)  # values of parameters and buffers are not part of a graph
        model.mask.mul_(2)
    second = again(model, other)
    assert len(traces) == 1
    assert first.graph() == second.graph()
    for one, two in zip(first.sources, second.sources, strict=True):
        assert two.tensor is (other if two.role is Role.INPUT else one.tensor)


def doubled(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> Tensor:
    return result * 2


CHANGES: dict[str, Callable[[Net], Any]] = {
    "an entry of a list": lambda net: net.factors.__setitem__(1, 3.0),
    "an entry of a dict": lambda net: net.settings.__setitem__("dtype", torch.float64),
    "an entry of a set": lambda net: net.settings["seen"].add(3),
    "another object": lambda net: setattr(net, "config", Config(bias=1.0)),
    "an attribute more": lambda net: setattr(net, "depth", 1),
    "a sign": lambda net: net.factors.__setitem__(0, -1.0),
    "a constant's values": lambda net: net.table.mul_(3),
    "another constant": lambda net: setattr(net, "table", torch.ones(4)),
    "a function": lambda net: setattr(net, "head", torch.relu),
    "a module": lambda net: setattr(net, "part", Part(4, 4)),
    "a hook": lambda net: net.norm.register_forward_hook(doubled),
    "a mode": lambda net: net.norm.eval(),
    "a parameter that is frozen": lambda net: net.norm.bias.requires_grad_(False),
    "another buffer": lambda net: setattr(net, "mask", torch.ones(4)),
    "a parameter's type": lambda net: net.double(),
    "forward": lambda net: setattr(net, "forward", types.MethodType(lambda _, x: x.sum(), net)),
}


SLOW = (
    *("an entry of a dict", "an entry of a set", "a sign", "an attribute more"),
    *("another constant", "another buffer", "another object", "a parameter's type", "a module"),
)


@pytest.mark.parametrize(
    "what", [pytest.param(w, marks=[pytest.mark.slow] if w in SLOW else []) for w in CHANGES]
)
def test_a_changed_model_is_traced_again(what: str, traces: list[Any]) -> None:
    model = Net()
    compiled(model)
    CHANGES[what](model)
    again(model, X.double() if what == "a parameter's type" else X)
    assert len(traces) == 2


def other_code(self: Part, input: Tensor) -> Tensor:
    return nn.Linear.forward(self, input)


def test_another_forward_of_a_class_is_traced_again(
    traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    first = compiled(model)
    monkeypatch.setattr(Part, "forward", other_code)
    assert again(model).graph() != first.graph()
    assert len(traces) == 2


@pytest.mark.parametrize("what", ["a global variable", "an attribute of a class", "a config"])
def test_what_lies_outside_of_the_modules_is_not_noticed(
    what: str, traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes around the modules, which the key leaves out (decision 7)."""
    model = Net()
    compiled(model)
    match what:
        case "a global variable":
            monkeypatch.setattr(sys.modules[__name__], "SIGN", -1.0)
        case "an attribute of a class":
            monkeypatch.setattr(Part, "shift", 2.0)
        case _:
            model.config.bias = 1.0
    again(model)
    assert len(traces) == 1


def test_other_inputs_modes_and_names_are_traced_again(traces: list[Any]) -> None:
    model = Net()
    compiled(model)
    again(model, torch.randn(3, 4))
    again(model, samba.from_torch_tensor(X, name="image"))
    again(model, X.clone().requires_grad_())
    again(model, inference=True)
    again(model, root="other")
    with torch.no_grad():
        again(model)
    assert len(traces) == 7


def test_another_model_of_the_same_class_is_traced(traces: list[Any]) -> None:
    compiled(Net())
    again(Net())
    assert len(traces) == 2


class Pair(NamedTuple):
    one: float
    two: float


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (Pair(1.0, 2.0), 1),
        (float("nan"), 1),
        (slice(0, 2), 1),
        (torch.float16, 1),
        (iter([1.0, 2.0]), 2),
        (np.ones(2), 2),
        (types.SimpleNamespace(a=1), 2),
    ],
)
def test_what_cannot_be_compared_is_not_trusted(value: Any, number: int, traces: list[Any]) -> None:
    model = Net()
    model.turns = value
    compiled(model)
    again(model)
    assert len(traces) == number


def test_a_kept_trace_keeps_no_model_alive() -> None:
    model = Net()
    compiled(model)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
    assert not trace_cache._kept


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        return x * 2


def test_a_model_that_its_forward_changes_is_as_before_and_traced_once(traces: list[Any]) -> None:
    model = Counts()
    compiled(model, inference=True)
    assert model.calls == []
    again(model, inference=True, root="counts")
    assert len(traces) == 1


def test_a_session_traces_once_and_still_finds_a_changed_model(tmp_path, traces: list[Any]) -> None:
    samba.session.reset()
    model = Net()
    load(samba.from_torch_model_(model), X, tmp_path, name="net")
    assert len(traces) == 1
    model.factors[1] = 5.0
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, X, pef=samba.session.pef_path)
    assert len(traces) == 2
    samba.session.reset()
