"""State behind hooks and behind what is called is of the next call, as what it assigns is."""

from __future__ import annotations

import functools
import importlib
import itertools
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samba.tracer.changed_state import ChangedAttributes, HookSnapshot
from tests.samba.tracer.layers import Layer, assert_as_torch, compiled
from tests.tracing import trace


class Captures(Layer):
    """Registers a hook in the first call, and computes with what it has seen: as transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.seen = []

    def forward(self, x):
        if not self.ready:
            self.lin.register_forward_hook(self.capture, with_kwargs=True)
            self.ready = True
        self.seen.clear()
        out = self.lin(x)
        return out + len(self.seen) * self.seen[0].tanh()

    def capture(self, module, args, kwargs, output):
        self.seen.append(output)


class Piles(Layer):
    """Registers one more hook in each call."""

    def forward(self, x):
        self.lin.register_forward_hook(self.twice)
        return self.lin(x)

    def twice(self, module, args, output):
        return output * 2


class Once(Layer):
    """Has a hook that removes itself, before another one."""

    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self.factor = factor
        self.handle = self.lin.register_forward_hook(self.first)
        self.lin.register_forward_hook(self.second)

    def first(self, module, args, output):
        self.handle.remove()
        return None if self.factor is None else output * self.factor

    def second(self, module, args, output):
        return output + 1


def test_a_hook_that_the_first_call_registers_is_registered_once(tmp_path):
    torch.manual_seed(0)
    model = Captures()
    pef = compiled(model, tmp_path)
    assert not model.ready and not model.lin._forward_hooks
    assert not model.lin._forward_hooks_with_kwargs
    assert_as_torch(model, pef, calls=2)
    assert len(model.lin._forward_hooks) == 1


@pytest.mark.parametrize("make", [Piles, lambda: Once(2.0)])
def test_hooks_that_make_the_second_call_another_are_refused(tmp_path, make):
    model = make()
    hooks = dict(model.lin._forward_hooks)
    with pytest.raises(ChangedAttributes) as caught:
        compiled(model, tmp_path)
    assert caught.value.names == ("lin.forward hooks",)
    assert "Register and remove hooks outside of forward()" in str(caught.value)
    assert "  at " not in str(caught.value)  # no line of a class's assigns a hook
    assert list(model.lin._forward_hooks.items()) == list(hooks.items())


def test_a_hook_that_removes_itself_is_there_after_the_compile(tmp_path, caplog):
    torch.manual_seed(0)
    model = Once(None)
    hooks = list(model.lin._forward_hooks.items())
    pef = compiled(model, tmp_path)
    assert list(model.lin._forward_hooks.items()) == hooks
    assert caplog.text.count("[deviation: unchanged-attribute]") == 1
    assert "lin.forward hooks" in caplog.text
    assert_as_torch(model, pef)


def test_moves_are_repeated_in_another_state():
    model = Layer()
    old = model.lin.register_forward_pre_hook(lambda module, args: None, with_kwargs=False)
    before = HookSnapshot(model)
    old.remove()
    new = model.register_full_backward_hook(lambda module, inputs, outputs: None)
    moved = before.moved()
    assert [(c.path, c.before, c.after) for c in before.changes()] == [
        ("full backward hooks", "0", "1"),
        ("lin.forward pre-hooks", "1", "0"),
    ]
    before.put_back()
    assert before.changes() == [] and list(model.lin._forward_pre_hooks) == [old.id]
    for hook in moved:
        hook.repeat()
    assert list(model._backward_hooks) == [new.id] and not model.lin._forward_pre_hooks


# -- decorators, bound methods, partial applications, other packages -------------------


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    calls = [0]

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        calls[0] += 1
        return function(*args) * calls[0]

    return wrapper


class Steps:
    def __init__(self) -> None:
        self.done = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.done += 1
        return x * self.done


def step(state: list[int], x: torch.Tensor) -> torch.Tensor:
    state[0] += 1
    return x * state[0]


class Decorated(nn.Module):
    """The functions that one decorator makes have one code, and a closure each."""

    @counting
    def first(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @counting
    def second(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x + 1)


class Calls(nn.Module):
    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self.called = called

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.called(x + 1)


def scaled(draw: Callable[[], float], x: torch.Tensor) -> torch.Tensor:
    return x * draw()


@functools.lru_cache
def box(start: int) -> list[int]:
    return [start]


@functools.cache
def boundless_box(start: int) -> list[int]:
    return [start]


def boxed(of: Callable[[int], list[int]], x: torch.Tensor) -> torch.Tensor:
    return step(of(0), x)


class Tables(nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019  # as scripts have it
    def table(self, size: int) -> torch.Tensor:
        return torch.arange(size).cos()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table(x.shape[1])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Decorated, "calls"),
        (lambda: Calls(Steps().__call__), r"called\.__self__\.done"),
        (lambda: Calls(functools.partial(step, [0])), r"called\.args\[0\]"),
        (lambda: Calls(functools.partial(Steps().__call__)), r"func\.__self__\.done"),
        (lambda: Calls(functools.partial(scaled, random.Random(2).random)), r"args\[0\]"),
        (lambda: Calls(functools.partial(boxed, box)), "1 entries -> 1 entries"),
        (lambda: Calls(functools.partial(boxed, boundless_box)), "1 entries -> 1 entries"),
    ],
)
def test_state_behind_a_call_is_the_models(make: Callable[[], nn.Module], names: str) -> None:
    with pytest.raises(ChangedAttributes, match=names):
        trace(make(), torch.ones(2, 4))


def counting_hook() -> Callable[..., Any]:
    calls = 0

    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return output * calls

    return hook


class Centring:
    """Its method is a hook that takes an average off."""

    def __init__(self) -> None:
        self.mean = torch.zeros(4)

    def hook(self, module: nn.Module, args: Any) -> Any:
        self.mean = 0.5 * self.mean + 0.5 * args[0].mean(0)
        return (args[0] - self.mean,)


class Hooked(nn.Module):
    """Has hooks that nothing else of the model holds."""

    def __init__(self, prepare: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.part = nn.Identity()
        prepare(self.part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


def attribute_of_itself(x: torch.Tensor) -> torch.Tensor:
    own: Any = attribute_of_itself
    attribute_of_itself.__dict__["calls"] = getattr(own, "calls", 0) + 1
    return x * own.calls


class Classes(nn.Module):
    """Holds what it counts with in its class."""

    steps = Steps()
    numbers = itertools.count(1)
    last = torch.zeros(())

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "an object":
            return self.steps(x)
        if self.kind == "a count":
            return x * next(self.numbers)
        y = x + self.last
        type(self).last = x.mean()
        return y


state_package: Any = None


def of_a_package(x: torch.Tensor) -> torch.Tensor:
    state_package.numbers.COUNT += 1
    return x * state_package.numbers.COUNT


def of_an_import(x: torch.Tensor) -> torch.Tensor:
    from state_package import numbers  # pyright: ignore[reportMissingImports]

    numbers.COUNT += 1
    return x * numbers.COUNT


class Evaluated(nn.Module):
    """Is in evaluation mode from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        self.norm.eval()
        return y


class Exchanges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Tanh(), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        self.first, self.second = self.second, self.first
        return y


class Iterates(nn.Module):
    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * next(self.numbers)


class Makes(nn.Module):
    """Makes a layer in the first call, whose weights torch draws once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[1], 2)
        return self.layer(x)


@pytest.fixture
def state_package_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without a file of its own, with a number in one of its modules."""
    (tmp_path / "state_package").mkdir()
    (tmp_path / "state_package" / "numbers.py").write_text("COUNT = 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(globals(), "state_package", importlib.import_module("state_package"))
    importlib.import_module("state_package.numbers")


@pytest.mark.usefixtures("state_package_")
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Hooked(lambda m: m.register_forward_hook(counting_hook())), "calls: 0 -> 1"),
        (
            lambda: Hooked(lambda m: m.register_forward_pre_hook(Centring().hook)),
            r"part\.forward pre-hook\.__self__\.mean",
        ),
        (lambda: Calls(attribute_of_itself), "attribute_of_itself.calls: nothing -> 1"),
        (lambda: Classes("an object"), r"steps\.done"),
        (lambda: Classes("a count"), "numbers: a state"),
        (lambda: Classes("a tensor"), "last: a tensor"),
        (lambda: Calls(of_a_package), r"state_package\.numbers\.COUNT"),
        (lambda: Calls(of_an_import), r"state_package\.numbers\.COUNT"),
        (Evaluated, r"norm\.training: True -> False"),
        (Exchanges, "first: a Tanh -> a ReLU"),
        (Makes, "layer: nothing -> a Linear"),
        (lambda: Iterates(itertools.cycle([1.0, 2.0])), "numbers: a position -> a later one"),
        (lambda: Iterates(float(n) for n in range(99)), "numbers: a position -> a later one"),
        (lambda: Iterates(iter([1.0] * 99)), "numbers: a position -> a later one"),
    ],
)
def test_state_that_only_hooks_classes_and_modules_have(
    make: Callable[[], nn.Module], names: str
) -> None:
    model = make()
    parts, modes = [*model.modules()], [m.training for m in model.modules()]
    with pytest.raises(ChangedAttributes, match=names):
        trace(model, torch.ones(2, 4))
    assert [*model.modules()] == parts and [m.training for m in parts] == modes
    assert Classes.last.item() == 0


class Frozen(Evaluated):
    """Is in evaluation mode in each call, and was not before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.eval()
        return self.norm(x)


class Fresh(nn.Module):
    """Makes a layer without weights in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer = nn.Tanh()
        return self.layer(x)


@pytest.mark.parametrize("make", [Frozen, Fresh])
def test_a_mode_and_a_layer_that_each_call_sets_are_those_of_all_calls(
    make: Callable[[], nn.Module],
) -> None:
    model = make()
    parts, modes = [*model.modules()], [m.training for m in model.modules()]
    trace(model, torch.ones(2, 4))
    assert [*model.modules()] == parts and [m.training for m in parts] == modes


def test_a_package_whose_name_begins_as_torchs_is_not_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = types.ModuleType("torchlike")
    package.__file__ = __file__
    monkeypatch.setitem(sys.modules, "torchlike", package)
    monkeypatch.setattr(Steps, "__module__", "torchlike")
    with pytest.raises(ChangedAttributes, match=r"called\.done"):
        trace(Calls(Steps()), torch.ones(2, 4))


def test_a_kept_table_serves_each_graph_and_the_host(caplog: pytest.LogCaptureFixture) -> None:
    model = Tables()
    first, second = trace(model, torch.ones(2, 4)), trace(model, torch.ones(3, 4))
    assert [node.op for node in first.nodes] == [node.op for node in second.nodes]
    assert "deviation" not in caplog.text
    assert torch.equal(model(torch.ones(1, 4))[0], torch.arange(4).cos())
