"""State behind what is called: decorators, bound methods, partial applications, other packages."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from samba.tracer.changed_state import ChangedAttributes
from tests.tracing import trace


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
