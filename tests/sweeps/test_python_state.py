"""Counters of ``forward``, wherever Python keeps them: only counted, and deciding every k-th call.

The first train as torch does. The others are refused, for a graph would decide as it did when it
was traced.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome, Tally

TURN = 0


@dataclasses.dataclass
class State:
    """An object with attributes."""

    n: int = 0


class Slots:
    """An object with a slot."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a count is kept.

    Args:
        make: Makes what holds it.
        count: Counts, with what was made; what it returns is held from then on.
        read: The count.
    """

    make: Callable[[], Any]
    count: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _entry(held: Any) -> Any:
    held["n"] += 1
    return held


def _first(held: Any) -> Any:
    held[0] += 1
    return held


def _attribute(held: Any) -> Any:
    held.n += 1
    return held


def _appended(held: Any) -> Any:
    held.append(0)
    return held


def _added(held: Any) -> Any:
    held.add(object())
    return held


def _class_attribute(held: Any) -> Any:
    Shared.n += 1
    return held


def _global(held: Any) -> Any:
    global TURN
    TURN += 1
    return held


def _default(held: Any, counts: list[int] = [0]) -> Any:  # noqa: B006  # this is what is tried
    counts[0] += 1
    return held


def _closed() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    n = 0

    def count(held: Any) -> Any:
        nonlocal n
        n += 1
        return held

    return count, lambda held: n


class Shared:
    """Its class holds the count."""

    n = 0


_CLOSED = _closed()

HOMES: dict[str, Home] = {
    "an attribute": Home(lambda: 0, lambda n: n + 1, lambda n: n),
    "a float": Home(lambda: 0.0, lambda n: n + 1, lambda n: int(n)),
    "a number of NumPy": Home(lambda: np.int64(0), lambda n: n + 1, lambda n: n),
    "an array of NumPy": Home(lambda: np.zeros(2), _first, lambda a: int(a[0])),
    "a text": Home(str, lambda t: t + "x", len),
    "a tuple": Home(lambda: (0, None), lambda t: (t[0] + 1, None), lambda t: t[0]),
    "an entry of a dict": Home(lambda: {"n": 0}, _entry, lambda d: d["n"]),
    "an entry of a list": Home(lambda: [0, 5], _first, lambda a: a[0]),
    "a length of a list": Home(list, _appended, len),
    "a new list": Home(list, lambda a: [*a[:9], 0] if type(a) is tuple else a + [0], len),  # noqa: RUF005  # this is what is tried
    "a length of a deque": Home(collections.deque, _appended, len),
    "a size of a set": Home(set, _added, len),
    "a Counter": Home(collections.Counter, _entry, lambda d: d["n"]),
    "an object": Home(State, _attribute, lambda o: o.n),
    "a new object": Home(State, lambda o: dataclasses.replace(o, n=o.n + 1), lambda o: o.n),
    "an object with slots": Home(Slots, _attribute, lambda o: o.n),
    "a namespace": Home(lambda: types.SimpleNamespace(n=0), _attribute, lambda o: o.n),
    "a class": Home(lambda: None, _class_attribute, lambda _: Shared.n),
    "a global variable": Home(lambda: None, _global, lambda _: TURN),
    "a default": Home(lambda: None, _default, lambda _: _default.__defaults__[0][0]),
    "a closure": Home(lambda: None, *_CLOSED),
    "an iterator": Home(itertools.count, lambda it: (next(it), it)[1], lambda it: next(it)),
}

UNCOUNTABLE = {"a new object", "an array of NumPy"}
"""Homes that cannot be counted without being read: they are refused either way."""


class Counting(nn.Module):
    """Counts its calls, and does something else every k-th time if k is not 0."""

    def __init__(self, home: Home, k: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        self.held, self.home, self.k = home.make(), home, k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held = self.home.count(self.held)
        loss = (self.w * x).square().mean()
        if self.k and self.home.read(self.held) % self.k == 0:
            loss = loss * 2.0
        return loss


INPUTS = {"x": torch.tensor([0.5, -0.25, 1.0])}


def _cases() -> Iterator[tuple[str, int]]:
    yield from itertools.product(HOMES, range(5))


SLICE = (
    *(("an attribute", 0), ("a global variable", 0)),
    *(("an attribute", 4), ("a length of a list", 3)),
)


def _sweep(cases: list[tuple[str, int]], folder: Path) -> Tally:
    tally = Tally("Python state")
    for name, k in cases:
        outcome, text = train_both(lambda n=name, k=k: Counting(HOMES[n], k), INPUTS, folder)
        wanted = Outcome.NAMED if k > 1 or name in UNCOUNTABLE else Outcome.EQUAL
        if k != 1 and outcome is not wanted:  # in every call: equal or refused
            outcome, text = Outcome.SILENT, f"{outcome} instead of {wanted}: {text}"
        tally.add(f"{name}, every {k} calls", outcome, text)
    return tally


def test_a_few_of_them(tmp_path):
    tally = _sweep(list(SLICE), tmp_path)
    tally.close(at_least=1)
    assert tally.counts[Outcome.NAMED] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_code")
def test_all_of_them(tmp_path):
    _sweep(list(_cases()), tmp_path).close(at_least=len(HOMES) - len(UNCOUNTABLE))
