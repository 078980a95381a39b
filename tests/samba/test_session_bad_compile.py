"""Bad input to ``compile`` and ``trace_graph``: the text of each error, and what stays intact."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from pef_schema.errors import PefError
from samba.errors import SambaError
from tests.api.covers import covers
from tests.samba.worlds import DROPOUT, INFERENCE, MLP, NO_OPTIMIZER, Mlp, World, named, told

BAD_FILES = Path(__file__).parents[1] / "bad"


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content; folders have none."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b""
        for p in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def refused(folder: Path, *parts: str, kind: type[SambaError] = SambaError):
    """The body raises an error whose text has these parts; files and session stay as they were."""
    before, loaded = files(folder), samba.session._loaded
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"
    assert files(folder) == before
    assert samba.session._loaded is loaded
    assert samba.session.tracing is False


@pytest.fixture
def folder(tmp_path, pefs):
    """A folder with a PEF and its log, which no refused compile may touch."""
    shutil.copytree(Path(pefs(MLP)).parent, tmp_path / "mlp")
    return tmp_path


def compile_into(folder: Path, model: nn.Module, inputs, optimizer=None, **keywords) -> str:
    config = {"output_folder": str(folder), "pef_name": "mlp", **keywords.pop("config", {})}
    return samba.session.compile(model, inputs, optimizer, config_dict=config, **keywords)


# -- what the model does ---------------------------------------------------------------------


@functools.cache
def mysteries():
    """Two operations that nothing can lower."""

    def make(name: str):
        @torch.library.custom_op(f"samba_tests::{name}", mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        op.register_fake(torch.empty_like)
        return op

    return make("enigma"), make("riddle")


def here(marker: str) -> str:
    """``file:line`` of the line of this file that ends with a marker."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return f"{__file__}:{number}"


class Mysterious(nn.Module):
    def forward(self, x):
        enigma, riddle = mysteries()
        x = enigma(x)  # first enigma
        x = riddle(x.tanh())  # the riddle
        return enigma(x) + enigma(x)  # two enigmas


def test_all_operations_without_lowering_at_once(folder):
    with refused(
        folder,
        "2 operation(s) have no lowering",
        f"samba_tests.enigma.default  x3  at {here('first enigma')}, {here('two enigmas')}",
        f"samba_tests.riddle.default  x1  at {here('the riddle')}",
        "Rewrite these lines",
    ) as caught:
        compile_into(folder, Mysterious(), torch.ones(2))
    assert [(op.name, op.count) for op in caught.value.ops] == [
        ("samba_tests.enigma.default", 3),
        ("samba_tests.riddle.default", 1),
    ]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Branch()

    def forward(self, x):
        return self.inner(x)


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the branch
            return x + 1
        return x - 1


def test_a_branch_on_data(folder):
    with refused(folder, here("the branch"), "Branching.inner", "value of a tensor", "torch.where"):
        compile_into(folder, Branching(), torch.ones(2))


class Loop(nn.Module):
    def forward(self, x):
        for _ in range(int(x[0])):  # the loop
            x = x + 1
        return x


def test_a_loop_on_data(folder):
    with refused(folder, here("the loop"), "value of a tensor"):
        compile_into(folder, Loop(), torch.ones(2))


class Misfit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), Adder())

    def forward(self, x, mask):
        return self.encoder[1](self.encoder[0](x), mask)


class Adder(nn.Module):
    def forward(self, x, mask):
        return x + mask  # misfit


def test_shapes_that_do_not_fit_keep_torchs_text(folder):
    model, inputs = Misfit(), (torch.ones(2, 4), torch.ones(2, 5))
    with pytest.raises(RuntimeError) as eager:
        model(*inputs)
    with refused(folder, str(eager.value), here("misfit"), "Misfit.encoder.1", "shapes") as caught:
        compile_into(folder, model, inputs)
    assert isinstance(caught.value, RuntimeError)


def test_a_matrix_product_that_does_not_fit(folder):
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(5, 3))
    with pytest.raises(RuntimeError) as eager:
        model(torch.ones(2, 4))
    with refused(folder, str(eager.value), "Sequential.1"):
        compile_into(folder, model, torch.ones(2, 4))


class Returns(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize(
    "make, found",
    [
        (lambda x: (x, "text"), "str 'text'"),
        (lambda x: 3.0, "float 3.0"),
        (lambda x: {"x": x, "n": 2}, "int 2"),
        (lambda x: (None, None), "nothing but None"),
    ],
)
def test_outputs_that_are_no_tensors(folder, make, found):
    with refused(folder, "model returns", f"forward() returns {found}", "tensors in tuples, lists"):
        compile_into(folder, Returns(make), torch.ones(2))


def test_none_among_outputs_is_left_out(folder):
    model = Returns(lambda x: (None, x + 1, None))
    x = samba.ones(2, name="x")
    pef = compile_into(folder, model, x)
    (out,) = samba.session.run(x, utils.trace_graph(model, x, pef=pef))
    assert out.tolist() == [2.0, 2.0]


# -- what is passed to compile ------------------------------------------------------------------


def test_inputs_to_trace_with(folder):
    model = Mlp()
    x, y = named(MLP.inputs())
    with refused(folder, "y", "missing"):
        compile_into(folder, model, (x,))
    with refused(folder, "inputs for tracing", "z", "['x', 'y']"):
        compile_into(folder, model, {"x": x, "y": y, "z": x})
    with refused(folder, "inputs for tracing", "found Linear", "wanted a tensor, tuple, list"):
        compile_into(folder, model, nn.Linear(1, 1))
    with refused(folder, "inputs for tracing", "y: int"):
        compile_into(folder, model, (x, 5))
    with refused(folder, "argument"):
        compile_into(folder, model, (x, y, x))


def test_keywords(folder):
    model, (x, y) = Mlp(), named(MLP.inputs())
    text = ["session.compile()", "unexpected keyword argument: optimiser", "optimizers for"]
    with refused(folder, *text) as caught:
        compile_into(folder, model, (x, y), optimiser=None)
    assert isinstance(caught.value, TypeError)
    with refused(folder, "utils.trace_graph()", "pfe", "Did you mean pef for pfe"):
        utils.trace_graph(model, (x, y), pfe="x.pef")
    with refused(folder, "utils.trace_graph()", "zzz", "It has model, inputs, optim"):
        utils.trace_graph(model, (x, y), zzz=1)


@pytest.mark.parametrize(
    "config, parts",
    [
        ({"mapping": "spacial"}, ["mapping", "'spacial'", "'section' or 'spatial'"]),
        ({"optim_level": "o9"}, ["optim_level", "o9", "o0, o1"]),
        ({"pef_name": "a/b"}, ["pef_name", "'a/b'", "without folders", "output_folder"]),
        ({"pef_name": ".."}, ["pef_name", "'..'"]),
        ({"pef_name": ".pef"}, ["pef_name", "''"]),
        ({"grad_accumulation_steps": 0}, ["grad_accumulation_steps", "0", "1 or more"]),
        ({"grad_accumulation_steps": "two"}, ["grad_accumulation_steps", "'two'"]),
    ],
)
def test_configuration(folder, config, parts):
    with refused(folder, *parts):
        compile_into(folder, Mlp(), named(MLP.inputs()), config=config)


@pytest.mark.parametrize("text", ["0", "-1", "ten", "\u00b2"])
def test_a_bucket_size_that_is_no_number_of_bytes(folder, monkeypatch, text):
    monkeypatch.setenv("BAGUA_DEFAULT_BUCKET_SIZE", text)
    with refused(folder, "BAGUA_DEFAULT_BUCKET_SIZE", repr(text), "a number of bytes, 1 or more"):
        compile_into(folder, Mlp(), named(MLP.inputs()))


def test_a_configuration_that_is_no_dict(folder):
    with refused(folder, "config_dict", "a list", "vars(args)"):
        samba.session.compile(Mlp(), named(MLP.inputs()), config_dict=["--o0"])


@pytest.mark.parametrize(
    "indices, parts",
    [([2], ["[2]", "2 output(s)", "0 to 1"]), ([-1], ["[-1]"]), (["loss"], ["'loss'", "from 0"])],
)
def test_loss_indices(folder, indices, parts):
    with refused(folder, "loss_indices", *parts):
        compile_into(folder, Mlp(), named(MLP.inputs()), loss_indices=indices)


def test_optimizers(folder):
    model, inputs = Mlp(), named(MLP.inputs())
    stale = torch.optim.SGD(Mlp().parameters(), lr=0.1)
    with refused(folder, "optimizer sgd0", "4 of its parameters", "model.parameters()"):
        compile_into(folder, model, inputs, stale)
    rms = torch.optim.RMSprop(model.parameters())
    with refused(folder, "optimizer RMSprop", "no update rule", "AdamW, Adam, SGD"):
        compile_into(folder, model, inputs, rms)
    with refused(folder, "not an optimizer"):
        compile_into(folder, model, inputs, "sgd")


# -- where the PEF goes ----------------------------------------------------------------------------


def test_folders_that_cannot_be_written(folder):
    model, inputs = Mlp(), named(MLP.inputs())
    (folder / "file").write_text("in the way")
    with refused(
        folder,
        str(folder / "file/mlp/mlp.pef"),
        "cannot make the folder",
        "another output folder",
        kind=PefError,
    ):
        compile_into(folder, model, inputs, config={"output_folder": str(folder / "file")})
    (folder / "net").write_text("in the way too")
    with refused(folder, "cannot make the folder", kind=PefError):
        compile_into(folder, model, inputs, config={"pef_name": "net"})
    (folder / "app" / "app.pef").mkdir(parents=True)
    with refused(folder, "app.pef", "a folder of this name is in the way", kind=PefError):
        compile_into(folder, model, inputs, config={"pef_name": "app"})
    (folder / "log" / "log.pef.log").mkdir(parents=True)
    with refused(folder, "log.pef.log", "a folder of this name is in the way", kind=PefError):
        compile_into(folder, model, inputs, config={"pef_name": "log"})


def test_a_folder_without_permission(folder, monkeypatch):
    """As for a user who is not root: the system refuses new files."""
    real = os.open

    def refuse(path, flags, *args, **keywords):
        if flags & os.O_CREAT and str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, **keywords)

    monkeypatch.setattr("os.open", refuse)
    with refused(
        folder, "mlp.pef", "cannot write to the folder", "Permission denied", kind=PefError
    ):
        compile_into(folder, MLP.build().model, named(MLP.inputs()))


def test_a_disk_that_fills_up_while_the_pef_is_written(folder, monkeypatch):
    """The log was written before; it goes back to what it was."""
    real = os.replace

    def refuse(source, target):
        if str(target).endswith(".pef"):
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr("os.replace", refuse)
    with refused(folder, "mlp.pef", "No space left on device", kind=PefError):
        compile_into(folder, MLP.build().model, named(MLP.inputs()), config={"optim_level": "o0"})
    (folder / "new").mkdir()
    with refused(folder, "new.pef", "No space left on device", kind=PefError):
        compile_into(folder, MLP.build().model, named(MLP.inputs()), config={"pef_name": "new"})


# -- PEFs that trace_graph refuses -----------------------------------------------------------------


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
        "newer.pef": (BAD_FILES / "future_major.pef").read_bytes(),
        "hardware.pef": (BAD_FILES / "hardware.pef").read_bytes(),
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
    with refused(tmp_path, "input 0", "x:float32", "image:float32"):
        tensors = MLP.inputs()
        inputs = named({"image": tensors["x"], "y": tensors["y"]})
        utils.trace_graph(running.model, inputs, pef=pef)
    with refused(tmp_path, "input 1", "int64[5]", "int32[5]"):
        tensors = MLP.inputs()
        utils.trace_graph(running.model, named({**tensors, "y": tensors["y"].int()}), pef=pef)
    with refused(tmp_path, "mode (train or inference)"):
        utils.trace_graph(DROPOUT.build().model.eval(), running.inputs, pef=pefs(DROPOUT))
    with refused(tmp_path, "float32", "bfloat16"):
        utils.trace_graph(MLP.build().model.bfloat16(), running.inputs, pef=pef)
    assert_still_running(running)


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
    with refused(tmp_path, pef, "for inference and cannot train", "Compile without inference"):
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
    with refused(tmp_path, "RMSprop", "no update rule"):
        rms = torch.optim.RMSprop(running.model.parameters())
        utils.trace_graph(running.model, running.inputs, rms, pef=running.pef)
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
