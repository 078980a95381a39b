"""Edits that a first form of the key did not notice, each in two files of a script."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samba.remembering.state_digest import Incomparable
from tests.samba.remembering.project import FILES, key_of, loaded

X = torch.ones(2, 8)


def held(value: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    return lambda model, net: setattr(model, "held", value(net))


def _aliased(model: Any, net: Any) -> None:
    model.one = torch.ones(4)
    model.two = model.one.view(4)


def _copied(model: Any, net: Any) -> None:
    model.one, model.two = torch.ones(4), torch.ones(4)


def _of_settings(depth: int) -> Callable[[Any, Any], None]:
    def edit(model: Any, net: Any) -> None:
        model.held, net.settings.UNUSED = net.settings, depth

    return edit


def _exec(scale: int) -> Any:
    space = {"K": scale}
    exec("def scaled(x): return x * K", space)  # as sympy's lambdify does
    return space["scaled"]


def _turned(model: Any, net: Any) -> None:
    weight = model.blocks[0].linear.weight
    weight.data = weight.data.t().contiguous().t()


PAIRS: dict[str, tuple[Callable[[Any, Any], None], Callable[[Any, Any], None]]] = {
    "a list and a tuple": (held(lambda n: [0, 1]), held(lambda n: (0, 1))),
    "two kinds of sets": (held(lambda n: {1}), held(lambda n: frozenset({1}))),
    "an order of numbers": (held(lambda n: {0, 8}), held(lambda n: {8, 0})),
    "a module that is an attribute": (_of_settings(1), _of_settings(2)),
    "globals of code that was made": (held(lambda n: _exec(1)), held(lambda n: _exec(2))),
    "a class that was made": (
        held(lambda n: types.new_class("Made", (), {}, lambda d: d.update(gain=1))),
        held(lambda n: types.new_class("Made", (), {}, lambda d: d.update(gain=2))),
    ),
    "strides of a weight": (lambda m, n: None, _turned),
    "memory that constants share": (_aliased, _copied),
    "the name of a function": (
        held(lambda n: __import__("math").sqrt),
        held(lambda n: __import__("cmath").sqrt),
    ),
    "an own attribute of the name of handles": (
        lambda m, n: setattr(m, "output_tensors", (1,)),
        lambda m, n: setattr(m, "output_tensors", (2,)),
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_they_have_two_keys(what: str, tmp_path: Path) -> None:
    one, two = PAIRS[what]
    keys: list[str] = []
    for edit in (one, one, two):
        with loaded(tmp_path, FILES) as net:
            keys.append(key_of(net, edit))
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch.nn.functional, "relu", torch.nn.functional.gelu),
        (torch.nn.functional, "relu", torch.tanh),
        (nn.Linear, "forward", nn.Identity.forward),
        (nn.Linear, "gain", 3),
    ],
)
def test_a_patch_by_what_is_torchs_is_noticed(
    owner: Any, name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded(tmp_path, FILES) as net:
        before = key_of(net)
        monkeypatch.setattr(owner, name, value, raising=False)
        assert key_of(net) != before


def test_code_of_a_module_that_is_not_registered(tmp_path: Path) -> None:
    keys: list[str] = []
    for gain in (1, 2):
        text = FILES["net.py"].replace("gain = 1.0", f"gain = {gain}")
        with loaded(tmp_path, FILES | {"net.py": text}) as net:
            del sys.modules["net"]
            keys.append(key_of(net))
    assert keys[0] != keys[1]


def test_a_cache_with_results_cannot_be_compared(tmp_path: Path) -> None:
    import functools

    def edit(model: Any, net: Any) -> None:
        model.cached = functools.lru_cache(net.helpers.plus)
        model.cached(1, 2)

    with loaded(tmp_path, FILES) as net, pytest.raises(Incomparable, match="results in its cache"):
        key_of(net, edit)
