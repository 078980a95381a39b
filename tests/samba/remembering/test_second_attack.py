"""Edits that a second form of the key did not notice: state of libraries, torch and odd objects."""

from __future__ import annotations

import operator
import random
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from samba.remembering.incomparable import Incomparable
from samba.remembering.state_digest import StateDigest
from tests.samba.remembering.project import FILES, key_of, loaded, same

Edit = Callable[[Any, Any], None]


def _moved(moves: bool) -> Edit:
    def edit(model: Any, net: Any) -> None:
        model.order_of = OrderedDict(a=1, b=2)
        if moves:
            model.order_of.move_to_end("a")

    return edit


def _held(value: Callable[[], Any]) -> Edit:
    return lambda model, net: setattr(model, "held", value())


def _views(step: int) -> Edit:
    def edit(model: Any, net: Any) -> None:
        memory = torch.ones(8)
        model.one, model.two = memory[:4], memory[step : step + 4]

    return edit


def _leaf(is_leaf: bool) -> Edit:
    def edit(model: Any, net: Any) -> None:
        weight = torch.ones(2, requires_grad=True)
        model.held = weight * 1
        if is_leaf:
            model.held = model.held.detach().requires_grad_()

    return edit


def _arrays(shared: bool) -> Edit:
    def edit(model: Any, net: Any) -> None:
        model.one = np.ones(4)
        model.two = model.one if shared else np.ones(4)
        model.two = model.two.view()

    return edit


def _named(name: str) -> Any:
    def made() -> None: ...

    made.__name__ = name
    return made


def _fields(order: tuple[str, str]) -> Any:
    return make_dataclass("Made", [(name, float, 1.0) for name in order])()


def _documented(text: str) -> Any:
    return types.new_class("Made", (), {}, lambda space: space.update(__doc__=text))


def _tries(widely: bool) -> Any:
    def narrow(x: Any) -> Any:
        y = x + 1
        try:
            return y / x
        except ZeroDivisionError:
            return y

    if widely:  # the same instructions, under a wider ``try``
        code = narrow.__code__
        narrow.__code__ = code.replace(co_exceptiontable=b"\x81" + code.co_exceptiontable[1:])
    return narrow


PAIRS: dict[str, tuple[Edit, Edit]] = {
    "an order of an OrderedDict": (_moved(False), _moved(True)),
    "a number and an array of NumPy": (
        _held(lambda: np.float32(1)),
        _held(lambda: np.array(1, "f4")),
    ),
    "strides of an array": (_held(lambda: np.ones((2, 2))), _held(lambda: np.ones((2, 2)).T[::1])),
    "memory of arrays": (_arrays(False), _arrays(True)),
    "views that overlap": (_views(2), _views(4)),
    "a tensor with a history": (_leaf(True), _leaf(False)),
    "a name of a function": (_held(lambda: _named("a")), _held(lambda: _named("b"))),
    "an order of fields": (
        _held(lambda: _fields(("a", "b"))),
        _held(lambda: _fields(("b", "a"))),
    ),
    "a text of a class": (_held(lambda: _documented("a")), _held(lambda: _documented("b"))),
    "what an except covers": (_held(lambda: _tries(False)), _held(lambda: _tries(True))),
    "a generator of numbers": (
        _held(lambda: np.random.default_rng(0)),
        _held(lambda: np.random.default_rng(1)),
    ),
    "Python's generator": (_held(lambda: random.Random(0)), _held(lambda: random.Random(1))),
    "an item getter": (
        _held(lambda: operator.itemgetter(0)),
        _held(lambda: operator.itemgetter(1)),
    ),
    "a universal function": (_held(lambda: np.add), _held(lambda: np.subtract)),
    "a type of numbers": (_held(lambda: np.dtype("f4")), _held(lambda: np.dtype("f8"))),
}  # fmt: skip


@pytest.mark.parametrize("what", PAIRS)
def test_they_have_two_digests(what: str) -> None:
    digests: list[str] = []
    for edit in (PAIRS[what][0], *PAIRS[what]):
        model, state = types.SimpleNamespace(), StateDigest({})
        edit(model, None)
        state.add(vars(model), "model")
        digests.append(state.hexdigest())
    assert digests[0] == digests[1] != digests[2]


class Watches(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Doubles(Watches):
    gain = 2


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _set(owner: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    def context() -> AbstractContextManager[Any]:
        patch = pytest.MonkeyPatch.context()
        return _Patched(patch, owner, name, value)

    return context


class _Patched:
    def __init__(self, patch: Any, owner: Any, name: str, value: Any) -> None:
        self.patch, self.at = patch, (owner, name, value)

    def __enter__(self) -> None:
        self.patch.__enter__().setattr(*self.at)

    def __exit__(self, *error: object) -> None:
        self.patch.__exit__(*error)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a function mode": Watches,
    "another function mode": Doubles,
    "a dispatch mode": Dispatches,
    "parametrize.cached()": parametrize.cached,
    "hooks on saved tensors": torch.autograd.graph.save_on_cpu,
    "autocast of another device": lambda: torch.autocast("cuda", torch.bfloat16),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "orders of einsum": _set(torch.backends.opt_einsum, "strategy", "optimal"),
    "einsum as it comes": _set(torch.backends.opt_einsum, "enabled", False),
    "oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "cuDNN": lambda: torch.backends.cudnn.flags(enabled=False),
    "attention": lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
}


@pytest.mark.filterwarnings("ignore")
def test_surroundings_are_noticed(tmp_path: Path) -> None:
    keys: dict[str, str] = {}
    with loaded(tmp_path, FILES) as net:
        for name, context in ({"nothing": nullcontext} | SURROUNDINGS).items():
            with context():
                keys[name] = key_of(net)
        assert key_of(net) == keys["nothing"]
    assert same(keys) == []


def test_tensors_that_parametrize_keeps_are_noticed(tmp_path: Path) -> None:
    def edit(model: Any, net: Any) -> None:
        parametrize.register_parametrization(model.blocks[0].linear, "weight", nn.Softplus())

    def asking(model: Any, net: Any) -> None:
        edit(model, net)
        _ = model.blocks[0].linear.weight

    keys: list[str] = []
    with loaded(tmp_path, FILES) as net:
        for each in (edit, asking):
            with parametrize.cached():
                keys.append(key_of(net, each))
    assert keys[0] != keys[1]


RANDOM = """
import random

import numpy as np


class Draws:
    def run(self, x):
        return x * {draw}
"""


@pytest.mark.parametrize(
    ("draw", "seed"), [("random.random()", random.seed), ("np.random.rand()", np.random.seed)]
)
def test_seeds_of_what_code_draws_are_noticed(draw: str, seed: Any, tmp_path: Path) -> None:
    with loaded(tmp_path, FILES | {"draws.py": RANDOM.format(draw=draw)}) as net:
        import draws  # pyright: ignore[reportMissingImports]

        keys: list[str] = []
        for number in (0, 0, 1):
            seed(number)
            keys.append(key_of(net, lambda model, _: setattr(model, "held", draws.Draws())))
        del sys.modules["draws"]
    assert keys[0] == keys[1] != keys[2]


def test_a_patch_far_away_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(tmp_path, FILES) as net:
        keys = [key_of(net)]
        monkeypatch.setattr(torch.nn.init, "dirac_", net.helpers.plus)
        keys.append(key_of(net))
        monkeypatch.setitem(torch._decomp.decomposition_table, "x", net.helpers.scaled)
        keys.append(key_of(net))
    assert len(set(keys)) == 3


def test_operations_that_torch_keeps_are_refused(tmp_path: Path) -> None:
    text = FILES["net.py"].replace("F.relu(", "torch.ops.odd.scaled(")
    library = torch.library.Library("odd", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * 2, "CompositeImplicitAutograd")
    with (
        loaded(tmp_path, FILES | {"net.py": text}) as net,
        pytest.raises(Incomparable, match="odd::scaled"),
    ):
        _ = torch.ops.odd.scaled
        key_of(net)
    library._destroy()
    other = torch.library.Library("aten", "IMPL")
    other.impl("hardshrink", lambda x: x, "CompositeImplicitAutograd")
    with loaded(tmp_path, FILES) as net, pytest.raises(Incomparable, match="aten::hardshrink"):
        key_of(net)
    other._destroy()


WALKS = {
    "for name in self.seen": True,
    "for name in sorted(self.seen)": False,
    'for name in self.seen if name in {"x", "z"}': True,
    'for name in {"a", "b"}': True,
    "for name in set(self.config.names)": True,
    "for name in list(set(self.config.names))": True,
    "for name in sorted(set(self.config.names))": False,
    'for name in self.config.names if name in self.seen and name in {"x", "z"}': False,
    "for name in [*self.seen]": True,
    "for name in self.few": False,
}


@pytest.mark.parametrize("walk", WALKS)
def test_an_order_of_texts_is_noticed(
    walk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    text = FILES["net.py"].replace("for i in self.order:", f"for i in [0 {walk}]:")
    text = text.replace("self.order = [0, 1]", 'self.few = {"only"}')
    with loaded(tmp_path, FILES | {"net.py": text}) as net:
        if not WALKS[walk]:
            assert len(key_of(net)) == 64
            return
        with pytest.raises(Incomparable, match="PYTHONHASHSEED"):
            key_of(net)


def test_an_order_that_a_seed_keeps_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    text = FILES["net.py"].replace("for i in self.order:", "for i in [0 for name in self.seen]:")
    with loaded(tmp_path, FILES | {"net.py": text}) as net:
        for seed, seen in (("3", {0, "x"}), ("3", {0, "x"}), ("4", {0, "y"})):
            monkeypatch.setenv("PYTHONHASHSEED", seed)
            keys.append(key_of(net, lambda model, _, seen=seen: setattr(model, "seen", seen)))
    assert keys[0] == keys[1] != keys[2]


HASHES = """
class Hashed:
    def __init__(self):
        self.name = "a text"
        self.hash = hash(self)

    def __hash__(self):
        return hash(self.name)
"""


def test_a_hash_is_no_hindrance(tmp_path: Path) -> None:
    with loaded(tmp_path, FILES | {"hashes.py": HASHES}) as net:
        import hashes  # pyright: ignore[reportMissingImports]

        keys: list[str] = []
        for name in ("a text", "another", "another"):
            held = hashes.Hashed()
            held.name = name
            held.hash = hash(held) + (len(keys) == 2)
            keys.append(key_of(net, lambda model, _, held=held: setattr(model, "held", held)))
        del sys.modules["hashes"]
    assert len(set(keys)) == 3, "the name counts, and a number that is not the hash"
