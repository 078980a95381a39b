"""PEFs that ``trace_graph`` refuses: the text of each error, and what stays intact."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from pef_schema.errors import PefError
from samba.errors import SambaError
from samba.session.check_pef import AutocastMismatch, NamesMismatch
from tests.api.covers import covers
from tests.pef_schema.bad_bytes import CASES
from tests.samba.refusals import compile_into, line_of, refused
from tests.samba.worlds import (
    DROPOUT,
    INFERENCE,
    MLP,
    NO_OPTIMIZER,
    Mlp,
    World,
    deviations,
    named,
    told,
)

here = functools.partial(line_of, __file__)


@pytest.fixture
def running(pefs):
    """A program on the device, which a refused ``trace_graph`` leaves there."""
    scene = pefs.loaded(MLP)
    scene.run()
    scene.host_step()
    return scene


def assert_still_running(scene) -> None:
    scene.run()
    scene.host_step()
    scene.assert_follows()
    assert scene.model.output_tensors[0].sn_name == "mlp__cross_entropy_loss__outputs__0"


@covers("samba.utils.trace_graph(pef)")
def test_files_that_are_no_pef(running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = Path(running.pef).read_bytes()
    contents = {
        "truncated.pef": data[: len(data) // 2],
        "damaged.pef": data[:200] + bytes([data[200] ^ 1]) + data[201:],
        "newer.pef": CASES["future_major"].make(),
        "hardware.pef": CASES["hardware"].make(),
        "model.pt": b"PK\x03\x04" + b"x" * 100,
        "empty.pef": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    texts = {
        "truncated.pef": ["truncated.pef: byte", "Copy the file again or recompile"],
        "damaged.pef": ["damaged.pef", "Copy the file again or recompile"],
        "newer.pef": ["newer.pef", "Update this package, or recompile"],
        "hardware.pef": ["hardware.pef", "Compile the model again with this package"],
        "model.pt": ["model.pt", "Give a file that `compile` wrote"],
        "empty.pef": ["empty.pef"],
        "nowhere.pef": [str(tmp_path / "nowhere.pef"), "Check the path, or compile"],
        ".": ["Give the path of the .pef file itself"],
    }
    for name, parts in texts.items():
        with refused(tmp_path, *parts, kind=PefError):
            running.trace(pef=name)
    with refused(tmp_path, "pef=", "no path", "session.compile"):
        samba.SambaSession().load(
            running.model, running.inputs, None, pef="", loss_indices=None, transfer_device=True
        )
    assert_still_running(running)


class Deeper(Mlp):
    """One operation more than the MLP."""

    def forward(self, x, y):
        out = self.second(self.drop(self.first(x).tanh().relu()))  # one op more
        return F.cross_entropy(out, y), out


Deeper.__name__ = "Mlp"


@covers("samba.utils.trace_graph(model)")
def test_another_graph_shows_the_first_difference(running, pefs, tmp_path):
    pef = running.pef
    model = Deeper()
    with refused(
        tmp_path,
        pef,
        "node 2",
        "compiled:",
        "aten.linear",
        "traced:",
        "aten.relu.default",
        here("one op more"),
        "Compile again",
    ):
        utils.trace_graph(model, running.inputs, pef=pef)
    with refused(tmp_path, "input 0", "float32[5, 4]", "float32[6, 4]"):
        utils.trace_graph(running.model, named(Mlp_inputs(6)), pef=pef)
    with refused(tmp_path, "input 1", "int64[5]", "int32[5]"):
        tensors = MLP.inputs()
        utils.trace_graph(running.model, named({**tensors, "y": tensors["y"].int()}), pef=pef)
    with refused(tmp_path, "mode (train or inference)"):
        utils.trace_graph(DROPOUT.build().model.eval(), running.inputs, pef=pefs(DROPOUT))
    with refused(tmp_path, "float32", "bfloat16"):
        utils.trace_graph(MLP.build().model.bfloat16(), running.inputs, pef=pef)
    assert_still_running(running)


class Renamed(nn.Module):
    """The MLP with another name for its first layer."""

    def __init__(self) -> None:
        super().__init__()
        model = Mlp()
        self.entry, self.drop, self.second = model.first, model.drop, model.second

    def forward(self, x, y):
        out = self.second(self.drop(self.entry(x).tanh()))
        return F.cross_entropy(out, y), out


Renamed.__name__ = "Mlp"


def test_a_model_of_which_only_names_differ(running, tmp_path):
    with refused(
        tmp_path,
        running.pef,
        "but names differ",
        "mlp__first__weight is mlp__entry__weight here",
        "If one was renamed, compile again",
        kind=NamesMismatch,
    ) as caught:
        utils.trace_graph(samba.from_torch_model_(Renamed()), running.inputs, pef=running.pef)
    assert ("mlp__first__bias", "mlp__entry__bias") in caught.value.names
    with refused(tmp_path, "but names differ", "x is image here"):
        tensors = MLP.inputs()
        utils.trace_graph(
            running.model, named({"image": tensors["x"], "y": tensors["y"]}), pef=running.pef
        )
    assert_still_running(running)


@pytest.mark.parametrize("compiled", [True, False])
def test_autocast_around_one_of_compile_and_trace_graph_is_named(compiled, running, tmp_path):
    def cast(active: bool):
        return torch.autocast("cpu", torch.bfloat16, enabled=active)

    words = {True: "with torch.autocast in bfloat16", False: "without torch.autocast"}
    with cast(compiled):
        pef = compile_into(tmp_path, running.model, running.inputs, running.optimizer)
    with (
        cast(not compiled),
        refused(
            tmp_path,
            f"this PEF was compiled {words[compiled]}",
            f"trace_graph is called {words[not compiled]}",
            "around both session.compile and trace_graph",
            kind=AutocastMismatch,
        ),
    ):
        utils.trace_graph(running.model, running.inputs, running.optimizer, pef=pef)
    assert_still_running(running)


def test_autocast_around_run_alone_is_told_once(running, caplog):
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            running.run(section_types=["fwd"])
    assert deviations(caplog) == ["autocast-at-run"]


def Mlp_inputs(batch: int):
    tensors = MLP.inputs()
    return {
        name: tensor.repeat(2, *[1] * (tensor.dim() - 1))[:batch]
        for name, tensor in tensors.items()
    }


def test_a_pef_without_the_optimizer(running, pefs, tmp_path):
    pef = pefs(NO_OPTIMIZER)
    with refused(
        tmp_path,
        pef,
        "given 1 optimizer parameter group(s)",
        "the PEF has none",
        "session.compile(model, inputs, optimizer)",
    ):
        running.trace(pef=pef)
    two = [
        torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        for m in (running.model.first, running.model.second)
    ]
    with refused(tmp_path, "given 2 optimizer parameter group(s)", "compiled with 1"):
        utils.trace_graph(running.model, running.inputs, two, pef=running.pef)
    assert_still_running(running)


def test_a_pef_for_inference(running, pefs, tmp_path):
    pef = pefs(INFERENCE)
    with refused(tmp_path, pef, "for inference and cannot train", "run with --inference"):
        running.trace(pef=pef)
    assert_still_running(running)
    # Scripts that are told --inference pass their optimizer all the same.
    running.trace(pef=pef, config_dict={"inference": True})
    assert samba.session.get_section_types() == {"FWD"}
    # Without an optimizer a PEF for training is loaded as it is.
    utils.trace_graph(running.model, running.inputs, pef=pefs(MLP))
    assert samba.session.get_section_types() == {"FWD", "BCKWD", "OPT"}


OTHERS = {
    "kind": (
        lambda m: torch.optim.AdamW(m.parameters()),
        ["optimizer sgd0", "kind: found ADAMW, compiled SGD"],
    ),
    "nesterov": (
        lambda m: samba.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        ["optimizer sgd0", "nesterov: found 1, compiled 0"],
    ),
    "parameters": (
        lambda m: samba.optim.SGD(m.first.parameters(), lr=0.1, momentum=0.9),
        ["parameters: found without mlp__second__weight, mlp__second__bias, compiled 4"],
    ),
}


def test_other_optimizers(running, tmp_path):
    for make, parts in OTHERS.values():
        with refused(tmp_path, running.pef, *parts, "order in which they were compiled"):
            utils.trace_graph(running.model, running.inputs, make(running.model), pef=running.pef)
    stale = torch.optim.SGD(MLP.build().model.parameters(), lr=0.1, momentum=0.9)
    with refused(tmp_path, "optimizer sgd0", "4 of its parameters", "model.parameters()"):
        utils.trace_graph(running.model, running.inputs, stale, pef=running.pef)
    assert_still_running(running)


def test_parameters_frozen_or_not_since_the_compile(running, tmp_path):
    model, weight = running.model, running.model.first.weight
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight.requires_grad_(False)
    pef = compile_into(tmp_path, model, running.inputs, optimizer)
    utils.trace_graph(model, running.inputs, optimizer, pef=pef)
    weight.requires_grad_(True)
    with pytest.raises(SambaError, match="requires_grad: found True for mlp__first__weight, comp"):
        utils.trace_graph(model, running.inputs, optimizer, pef=pef)
    weight.requires_grad_(False)
    with pytest.raises(SambaError, match="requires_grad: found False for mlp__first__weight, comp"):
        utils.trace_graph(model, running.inputs, optimizer, pef=running.pef)


def test_other_settings_of_adamw(pefs, tmp_path):
    def make(beta, norm):
        return lambda m: samba.optim.AdamW(
            m.parameters(), betas=(beta, 0.99), eps=1e-6, max_grad_norm=norm
        )

    scene = pefs.scene(World(name="settings", optimizer=make(0.9, 1.0)))
    scene.trace()  # the same settings survive the file exactly
    with refused(
        tmp_path,
        "adamw0",
        "beta1: found 0.8, compiled 0.9",
        "max_grad_norm: found None, compiled 1.0",
        "hyperparam_dict",
    ):
        optimizer = make(0.8, None)(scene.model)
        utils.trace_graph(scene.model, scene.inputs, optimizer, pef=scene.pef)


@covers("samba.utils.trace_graph(loss_indices)")
def test_other_losses(running, pefs, tmp_path):
    with refused(tmp_path, "loss_indices", "[1]", "[0], the losses that", running.pef):
        running.trace(loss_indices=[1])
    with refused(tmp_path, "mapping", "'spacial'", "'section' or 'spatial'"):
        running.trace(mapping="spacial")
    with refused(tmp_path, "data_parallel_mode", "'fast'"):
        running.trace(data_parallel_mode="fast")
    assert_still_running(running)
    inference = pefs.loaded(INFERENCE, loss_indices=[0])  # nothing to compare with
    assert len(inference.run()) == 2


def test_a_refused_trace_tells_nothing_new(running, pefs, tmp_path, caplog):
    """Warnings about a program come only with the program."""
    running.optimizer.param_groups[0]["lr"] = 0.5
    with refused(tmp_path, "the PEF has none"):
        running.trace(pef=pefs(NO_OPTIMIZER))
    assert not told(caplog)
