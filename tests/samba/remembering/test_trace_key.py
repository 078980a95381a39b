"""What a remembered trace depends on: every edit of a model and of what it uses is noticed."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samba
from samba.remembering import trace_key as module
from samba.remembering.stand_ins import Incomparable
from samba.remembering.trace_key import trace_key
from samba.tracer.inputs import collect_inputs
from tests.samba.remembering.project import FILES, key_of, key_or_refusal, loaded
from tests.tracing import trace


@pytest.fixture
def key(tmp_path: Path) -> str:
    with loaded(tmp_path, FILES) as net:
        return key_of(net)


def test_what_is_loaded_again_has_the_same_key(tmp_path: Path, key: str) -> None:
    with loaded(tmp_path, FILES) as net:
        assert key_of(net) == key
    other = tmp_path / "moved"
    other.mkdir()
    with loaded(other, FILES) as net:
        assert key_of(net) == key, "a project may lie elsewhere"


TEXTS = [
    ("settings.py", "DEPTH = 2", "DEPTH = 3"),
    ("settings.py", "UNUSED = 3", "UNUSED = 4"),
    ("settings.py", "width = 8", "width = 8  # wide"),
    ("helpers.py", "factor=2.0", "factor=2.5"),
    ("helpers.py", "x * factor *", "x + factor *"),
    ("helpers.py", "x**power", "x**power + 1"),
    ("net.py", "FLAG = True", "FLAG = False"),
    ("net.py", "F.relu", "F.gelu"),
    ("net.py", '"gain"]', '"shift"][0]'),
    ("net.py", "from helpers import Part, scaled", "from helpers import Part, plus as scaled"),
]  # fmt: skip
"""The text of each file is part of the key: edits of each, some of as many letters as before."""


def test_an_edit_of_a_file_is_noticed(tmp_path: Path, key: str) -> None:
    unnoticed: list[str] = []
    for file, old, new in TEXTS:
        assert FILES[file].count(old) == 1
        with loaded(tmp_path, FILES | {file: FILES[file].replace(old, new)}) as net:
            unnoticed += [new] if key_or_refusal(net) == key else []
    with loaded(tmp_path, FILES) as net:
        assert key_of(net) == key
    assert unnoticed == []


def tied(model: Any, net: Any) -> None:
    del net
    model.blocks[0].linear.weight = model.blocks[1].linear.weight


def buffer_for_constant(model: Any, net: Any) -> None:
    del net
    del model.mask
    model.register_buffer("mask", torch.ones(8))


def unsaved(model: Any, net: Any) -> None:
    del net
    model.register_buffer("steps", torch.zeros(()), persistent=False)


def renamed(model: Any, net: Any) -> None:
    del net
    model.blocks = nn.ModuleDict({"a": model.blocks[0], "b": model.blocks[1]})


def doubled(*args: Any) -> Any:
    return args[-1]


class Meta(nn.Linear):
    """Another class of the same attributes."""


STATE: dict[str, Callable[[Any, Any], Any]] = {
    "a global": lambda m, n: setattr(n, "FLAG", False),
    "a global of another module": lambda m, n: setattr(n.settings, "SCALE", 0.75),
    "a global that a text names": lambda m, n: setattr(n.settings, "DEPTH", 1),
    "an entry of a global": lambda m, n: n.settings.TABLE.update(gain=9.0),
    "a global function": lambda m, n: setattr(n, "scaled", doubled),
    "a function of another module": lambda m, n: setattr(n.helpers, "squared", doubled),
    "a closure": lambda m, n: setattr(n.helpers, "squared", n.helpers.made(7)),
    "a default": lambda m, n: setattr(n.scaled, "__defaults__", (3.0,)),
    "a default by name": lambda m, n: n.scaled.__kwdefaults__.update(shift=2.0),
    "arguments of a partial": lambda m, n: n.helpers.added.keywords.update(amount=4.0),
    "a function's code": lambda m, n: setattr(n.scaled, "__code__", n.helpers.plus.__code__),
    "an attribute of a class": lambda m, n: setattr(n.Block, "gain", 3.0),
    "a method": lambda m, n: setattr(n.Block, "forward", doubled),
    "a property": lambda m, n: setattr(n.Block, "double", property(lambda self: 7)),
    "a method in an instance": lambda m, n: setattr(m, "forward", types.MethodType(doubled, m)),
    "the class of a module": lambda m, n: setattr(m.blocks[0].linear, "__class__", Meta),
    "a module": lambda m, n: setattr(m.blocks[0], "linear", nn.Linear(8, 8, bias=False)),
    "a module more": lambda m, n: m.blocks.append(n.Block(8)),
    "a module less": lambda m, n: m.blocks.__delitem__(1),
    "modules under other names": renamed,
    "one module twice": lambda m, n: m.blocks.__setitem__(1, m.blocks[0]),
    "an attribute": lambda m, n: setattr(m.blocks[1], "rate", 0.25),
    "a sign of zero": lambda m, n: setattr(m.blocks[1], "rate", -0.0),
    "a config": lambda m, n: setattr(m, "config", n.settings.Config(bias=2.0)),
    "a field of a dataclass": lambda m, n: setattr(m.part, "factor", 9.0),
    "an item of a list": lambda m, n: m.order.append(0),
    "a constant's values": lambda m, n: m.mask.mul_(2),
    "one value of a constant": lambda m, n: m.mask.__setitem__(3, 2.0),
    "a constant's type": lambda m, n: setattr(m, "mask", m.mask.double()),
    "a constant as a buffer": buffer_for_constant,
    "a mode": lambda m, n: m.blocks[0].norm.eval(),
    "a frozen parameter": lambda m, n: m.blocks[0].linear.bias.requires_grad_(False),
    "a parameter's type": lambda m, n: m.blocks[0].linear.double(),
    "a parameter less": lambda m, n: setattr(m.blocks[0].linear, "bias", None),
    "a parameter more": lambda m, n: m.register_parameter("more", nn.Parameter(torch.ones(1))),
    "tied parameters": tied,
    "a buffer's shape": lambda m, n: m.register_buffer("steps", torch.zeros(1)),
    "names of parameters": lambda m, n: samba.from_torch_model_(m),
    "a hook": lambda m, n: m.blocks[0].register_forward_hook(doubled),
    "a hook before": lambda m, n: m.blocks[0].register_forward_pre_hook(doubled),
    "a hook of gradients": lambda m, n: m.blocks[0].linear.weight.register_hook(doubled),
    "a setting of a layer": lambda m, n: setattr(m.blocks[0].norm, "momentum", 0.5),
    "statistics": lambda m, n: setattr(m.blocks[0].norm, "track_running_stats", False),
}  # fmt: skip


UNREAD: dict[str, Callable[[Any, Any], Any]] = {
    "an entry of a list in a global": lambda m, n: n.settings.TABLE["shift"].append(1.0),
    "an attribute of a base": lambda m, n: setattr(n.settings.Config, "width", 16),
    "a type of a number": lambda m, n: setattr(m, "order", [0, True]),
    "a buffer that is not saved": unsaved,
    "an attribute more": lambda m, n: setattr(m, "other", None),
    "a text": lambda m, n: setattr(m.config, "names", ("a", "d")),
    "an entry of a config": lambda m, n: m.config.extra.update(keep=False),
    "an enum": lambda m, n: setattr(m.part, "kind", n.helpers.Kind.MEAN),
    "an item of a set": lambda m, n: m.seen.add("z"),
    "an array": lambda m, n: setattr(m, "array", np.arange(3)),
}  # fmt: skip


def test_another_state_is_noticed(tmp_path: Path, key: str) -> None:
    unnoticed: list[str] = []
    for what, edit in STATE.items():
        with loaded(tmp_path, FILES) as net:
            unnoticed += [what] if key_or_refusal(net, edit) == key else []
    with loaded(tmp_path, FILES) as net:
        assert key_of(net) == key
    assert unnoticed == []


def test_what_no_call_reads_does_not_count(tmp_path: Path, key: str) -> None:
    for what, edit in UNREAD.items():
        with loaded(tmp_path, FILES) as net:
            assert key_of(net, edit) == key, what


@pytest.mark.slow
@pytest.mark.parametrize("what", UNREAD)
def test_what_no_call_reads_changes_no_trace(what: str, tmp_path: Path) -> None:
    with loaded(tmp_path, FILES) as net:
        models = [net.Net() for _ in range(2)]
        UNREAD[what](models[1], net)
        traced = [trace(model, torch.ones(2, 8)).nodes for model in models]
        assert traced[0] == traced[1]


PATCHES = {
    "a function of torch": (torch, "relu"),
    "a function of torch.nn.functional": (torch.nn.functional, "relu"),
    "a method of a layer": (nn.BatchNorm1d, "forward"),
    "forward of a layer": (nn.Linear, "forward"),
    "a method of every module": (nn.Module, "__call__"),
    "a method of tensors": (torch.Tensor, "mul"),
}


def test_a_patch_of_torch_is_noticed(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, (owner, name) in PATCHES.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, doubled, raising=False)
            with loaded(tmp_path, FILES) as net:
                assert key_or_refusal(net) != key, what
    with loaded(tmp_path, FILES) as net:
        assert key_of(net) == key


def test_settings_inputs_and_versions_are_noticed(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, 8)
    with loaded(tmp_path, FILES) as net:
        keys = [
            key,
            key_of(net, inference=True),
            key_of(net, x=torch.ones(3, 8)),
            key_of(net, x=x.double()),
            key_of(net, x=x.clone().requires_grad_()),
            key_of(net, x=torch.ones(8, 2).T),
            key_of(net, x={"x": x}),
            key_of(net, x=samba.from_torch_tensor(x, name="image")),
        ]
        with torch.autocast("cpu", torch.bfloat16):
            keys.append(key_of(net))
        with torch.no_grad():
            keys.append(key_of(net))
        handle = nn.modules.module.register_module_forward_hook(doubled)
        keys.append(key_of(net))
        handle.remove()
        for name in ("installed", "own_version"):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, lambda: ["transformers-4.0.dist-info"])
                keys.append(key_of(net))
        assert key_of(net) == key
    assert len(set(keys)) == len(keys)


def test_a_module_more_is_noticed(tmp_path: Path, key: str) -> None:
    text = FILES["net.py"].replace("import helpers", "import more\nimport helpers", 1)
    with loaded(tmp_path, FILES | {"net.py": text, "more.py": ""}) as net:
        first = key_of(net)
    with loaded(tmp_path, FILES | {"net.py": text, "more.py": "import torch\n"}) as net:
        assert len({key, first, key_of(net)}) == 3


REFUSED: dict[str, tuple[str, str]] = {
    "prints": ("print('here')", "prints or warns 'here"),
    "warns": ("warnings.warn('odd')", "prints or warns 'odd'"),
    "changes its state": ("self.done = getattr(self, 'done', 0) + 1", "changes done"),
    "draws from Python's generator": ("x = x * random.random()", "draws from Python's random"),
    "reads a value": ("x = x * x.sum().item()", "reads the value of a tensor"),
    "reads what it has changed": ("self.seen.add_(1).item()", "reads a value that it has changed"),
    "writes into a constant": ("self.steps.add_(1)", "writes into a constant"),
    "branches": ("x = x if x.sum() > 0 else -x", "reads the value of a tensor"),
    "finds what is not zero": ("x = x[x.nonzero()[:, 0]]", "nonzero"),
    "changes a form in place": ("x = x.clone().t_().t_()", "changes the shape or strides"),
    "has a gradient of its own": ("x = Gate.apply(x)", "gradient of the model's own"),
    "registers a hook": ("x = x * 1; x.register_hook(print)", "registers a hook"),
    "calls an operation of others": ("x = torch.ops.odd.scaled(x)", "odd.scaled"),
    "asks for another device": ("x = x + torch.ones(8, device='meta')", "asks for device meta"),
    "has torch branch": ("x = torch.cond(x.sum() > 0, lambda y: y, lambda y: -y, (x,))", "cond"),
    "draws from a generator": (
        "x = x + torch.rand(8, generator=torch.Generator())", "takes a Generator"
    ),
}  # fmt: skip

GATE = """
import random
import warnings


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = torch.zeros(())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        x = self.linear(x)
        {statement}
        return x.sum()
"""


@pytest.fixture
def odd_operation() -> Iterator[None]:
    library = torch.library.Library("odd", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * 2, "CompositeExplicitAutograd")
    yield
    library._destroy()


@pytest.mark.filterwarnings("default:odd")
@pytest.mark.usefixtures("odd_operation")
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_call_does_and_no_key_has_is_refused(what: str, tmp_path: Path) -> None:
    statement, reason = REFUSED[what]
    text = "import torch\nfrom torch import nn\n" + GATE.format(statement=statement)
    with (
        loaded(tmp_path, {"net.py": text}) as net,
        pytest.raises(Incomparable) as caught,
    ):
        key_of(net)
    assert reason in str(caught.value)


def test_a_hook_of_gradients_is_refused(tmp_path: Path) -> None:
    def edit(model: Any, net: Any) -> None:
        model.blocks[1].register_full_backward_hook(lambda *_: None)

    with loaded(tmp_path, FILES) as net, pytest.raises(Incomparable, match=r"blocks\.1 has"):
        key_of(net, edit)


def test_all_is_as_before_the_call(tmp_path: Path) -> None:
    """Buffers, generators and what lies outside of the model, also after a call that is refused."""
    text = FILES["net.py"].replace("x = x * self.mask", "x = x * self.mask; CALLS.append(x)")
    text = text.replace("FLAG = True", "FLAG = True\nCALLS = []")
    for source, refused in ((FILES["net.py"], False), (text, True)):
        with loaded(tmp_path, FILES | {"net.py": source}) as net:
            model = net.Net()
            given = collect_inputs(model, torch.ones(2, 8))
            before = {name: value.clone() for name, value in model.state_dict().items()}
            drawn = torch.get_rng_state()
            with pytest.raises(Incomparable, match="CALLS") if refused else nullcontext():
                trace_key(model, given, inference=False)
            assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
            assert torch.equal(torch.get_rng_state(), drawn)
            assert not getattr(net, "CALLS", [])
            assert not nn.modules.module._global_forward_hooks


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import samba
from samba.remembering.trace_key import trace_key
from samba.tracer.inputs import collect_inputs
import net

model = net.Net()
samba.from_torch_model_(model)
print(trace_key(model, collect_inputs(model, torch.ones(2, 8)), inference=False))
"""


@pytest.mark.slow  # test_start_line.py starts processes of which the later ones remember
def test_processes_find_the_same_key(tmp_path: Path) -> None:
    """Texts have another hash in each process, and sets another order."""
    with loaded(tmp_path, FILES):
        pass
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    keys = [process.communicate(timeout=120)[0].strip() for process in started]
    assert len(keys[0]) == 64
    assert keys[0] == keys[1]
