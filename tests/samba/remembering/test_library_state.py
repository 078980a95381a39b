"""What the modules of a library hold at run time, which its version does not say."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.samba.remembering.project import FILES, key_of, key_or_refusal, loaded, same

LIBRARY = {
    "odd_library/__init__.py": "from . import layers, options\n",
    "odd_library/options.py": """
class Options:
    def __init__(self):
        self.depth = 1


OPTIONS = Options()
GAIN = 1.0
UNSEEN = 1
""",
    "odd_library/layers.py": """
import torch
from torch import nn

from odd_library import options
from odd_library.options import OPTIONS

ATTENTION = {"plain": torch.softmax}
FLAG = True


class Registry:
    _shared = {}

    def __init__(self):
        self.own = {}

    def __getitem__(self, name):
        return self.own.get(name) or self._shared[name]


REGISTRY = Registry()
Registry._shared["relu"] = torch.relu


def helped(x, by=1.0):
    return x * by * options.GAIN + OPTIONS.depth


def made(power):
    def run(x):
        return x**power
    return run


raised = made(2)


class Layer(nn.Module):
    rate = 0.5

    def forward(self, x):
        if FLAG:
            x = ATTENTION["plain"](x, -1)
        return self._after(raised(helped(REGISTRY["relu"](x))))

    def _after(self, x):
        return x * self.rate

    def export(self):
        return options.UNSEEN
""",
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library as if it were installed: its code counts by its version."""
    from samba.remembering import code_origins

    place = tmp_path / "site-packages"
    for name, text in LIBRARY.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    python, sites = code_origins._folders()
    folders = python, (*sites, f"{place.resolve()}/")
    monkeypatch.setattr(code_origins, "_folders", lambda: folders)
    monkeypatch.syspath_prepend(str(place))
    code_origins.is_users_file.cache_clear()
    import odd_library  # pyright: ignore[reportMissingImports]

    yield odd_library
    for name in [name for name in sys.modules if name.partition(".")[0] == "odd_library"]:
        del sys.modules[name]
    code_origins.is_users_file.cache_clear()


def doubled(x: Any, *others: Any) -> Any:
    return x * 2


LIBRARY_EDITS: dict[str, Callable[[Any], None]] = {
    "a registry": lambda lib: lib.layers.ATTENTION.update(plain=doubled),
    "a registry, by torch's": lambda lib: lib.layers.ATTENTION.update(plain=torch.log_softmax),
    "a registry of a class": lambda lib: lib.layers.Registry._shared.update(relu=torch.tanh),
    "an object that is a registry": lambda lib: lib.layers.REGISTRY.own.update(relu=torch.sigmoid),
    "a flag": lambda lib: setattr(lib.layers, "FLAG", False),
    "a flag of another module": lambda lib: setattr(lib.options, "GAIN", 2.0),
    "an option": lambda lib: setattr(lib.options.OPTIONS, "depth", 2),
    "a default": lambda lib: setattr(lib.layers.helped, "__defaults__", (2.0,)),
    "a closure": lambda lib: setattr(lib.layers, "raised", lib.layers.made(3)),
    "a function": lambda lib: setattr(lib.layers, "helped", doubled),
    "an attribute of a class": lambda lib: setattr(lib.layers.Layer, "rate", 0.25),
    "a method": lambda lib: setattr(lib.layers.Layer, "_after", lambda self, x: x * 3),
}  # fmt: skip


def test_what_a_library_holds_is_noticed(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_layer(model: Any, net: Any) -> None:
        model.blocks[0].linear = library.layers.Layer()

    keys: dict[str, str] = {}
    with loaded(tmp_path, FILES) as net:
        for name, edit in LIBRARY_EDITS.items():
            for module in ("odd_library.layers", "odd_library.options", "odd_library"):
                sys.modules.pop(module, None)
            import odd_library  # pyright: ignore[reportMissingImports]

            library = odd_library
            keys.setdefault("nothing", key_of(net, with_layer))
            edit(library)
            keys[name] = key_or_refusal(net, with_layer)
        before = key_of(net, with_layer)
        library.options.UNSEEN = 2
        library.layers.ATTENTION["other"] = torch.sigmoid
        assert key_of(net, with_layer) == before, "no call reads them"
    assert same(keys) == []


USES = """
import odd_library


class Uses:
    def run(self, x):
        from . import late
        import odd_library.options as options

        return x * late.DEPTH * options.GAIN * odd_library.options.OPTIONS.depth
"""


def test_what_code_loads_itself_is_noticed(library: Any, tmp_path: Path) -> None:
    files = FILES | {"uses.py": USES, "late.py": "DEPTH = 1\n"}
    edits: dict[str, Callable[[Any], None]] = {
        "nothing": lambda net: None,
        "a module of the package": lambda net: setattr(sys.modules["pack.late"], "DEPTH", 2),
        "a module of a library": lambda net: setattr(library.options, "GAIN", 3.0),
        "an object of a library": lambda net: setattr(library.options.OPTIONS, "depth", 3),
    }
    package = types.ModuleType("pack")
    package.__path__ = [str(tmp_path)]
    keys: dict[str, str] = {}
    with loaded(tmp_path, files) as net, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pack", package)
        import pack.late  # pyright: ignore[reportMissingImports]
        import pack.uses  # pyright: ignore[reportMissingImports]

        for name, edit in edits.items():
            edit(net)
            keys[name] = key_of(net, lambda model, _: setattr(model, "call", pack.uses.Uses().run))
        for name in ("pack.late", "pack.uses"):
            del sys.modules[name]
    assert same(keys) == []
