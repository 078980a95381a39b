"""Bad input to ``compile``: the text of each error, and what stays intact."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from pef_schema.errors import PefError
from tests.samba.refusals import compile_into, line_of, refused
from tests.samba.worlds import MLP, Mlp, named

here = functools.partial(line_of, __file__)


@pytest.fixture
def folder(tmp_path, pefs):
    """A folder with a PEF and its log, which no refused compile may touch."""
    shutil.copytree(Path(pefs(MLP)).parent, tmp_path / "mlp")
    return tmp_path


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


class Notes(nn.Module):
    """What it does first cannot be done twice."""

    def forward(self, x):
        samba.session.add_aux_tensor(x, "noted")
        return self.nowhere(x)  # absent


def test_the_first_failure_is_told_and_not_that_of_a_second_call(folder):
    with refused(folder, "has no attribute 'nowhere'", here("absent")):
        compile_into(folder, Notes(), torch.ones(2, 4))


class Keeps(nn.Module):
    """Keeps what it computed for the next call, as a cache of position embeddings does."""

    kept: torch.Tensor | None = None

    def forward(self, x):
        if Keeps.kept is None:
            Keeps.kept = torch.arange(4.0).cos()
        return x * Keeps.kept


def test_what_a_class_keeps_is_put_back_after_a_trace(folder, monkeypatch):
    monkeypatch.setattr(Keeps, "kept", None)
    for batch in (2, 3):
        compile_into(folder, Keeps(), torch.ones(batch, 4))
        assert Keeps.kept is None


_TABLES = {}


class KeepsFarAway(nn.Module):
    """The same in a place that no trace puts back."""

    def forward(self, x):
        table = sys.modules[__name__].__dict__["_TABLES"]
        return x * table.setdefault("cos", torch.arange(4.0).cos())


def test_a_tensor_that_an_earlier_trace_made_and_kept(folder, monkeypatch):
    monkeypatch.setitem(_TABLES, "other", None)
    compile_into(folder, KeepsFarAway(), torch.ones(2, 4))
    with refused(folder, "kept from an earlier trace", "as a buffer"):
        compile_into(folder, KeepsFarAway(), torch.ones(3, 4))
    del _TABLES["cos"]


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
    with refused(folder, "found 1 input(s): missing", "'y'", "expected those of forward(x, y)"):
        compile_into(folder, model, (x,))
    with refused(folder, "found 1 input(s): missing", "'x'", "expected those of forward(x, y)"):
        compile_into(folder, model, {"y": y})
    with refused(folder, "inputs for tracing", "z", "['x', 'y']"):
        compile_into(folder, model, {"x": x, "y": y, "z": x})
    with refused(folder, "inputs for tracing", "found Linear", "expected a tensor, tuple, list"):
        compile_into(folder, model, nn.Linear(1, 1))
    with refused(folder, "inputs for tracing", "y: int"):
        compile_into(folder, model, (x, 5))
    with refused(folder, "found 3 input(s): too many", "expected those of forward(x, y)"):
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
    with refused(folder, "config_dict", "found list", "vars(args)"):
        samba.session.compile(Mlp(), named(MLP.inputs()), config_dict=["--o0"])


@pytest.mark.parametrize(
    "indices, parts",
    [
        ([2], ["[2]", "2 output(s)", "0 to 1"]),
        ([-1], ["[-1]"]),
        (["loss"], ["'loss'", "from 0"]),
        ("0", ["str '0'", "from 0"]),
        (0.5, ["float 0.5", "from 0"]),
        ([(0, 1)], ["tuple (0, 1)", "from 0"]),
        ([True], ["bool True", "from 0"]),
    ],
)
def test_loss_indices(folder, indices, parts):
    with refused(folder, "loss_indices", *parts):
        compile_into(folder, Mlp(), named(MLP.inputs()), loss_indices=indices)


def test_optimizers(folder):
    model, inputs = Mlp(), named(MLP.inputs())
    stale = torch.optim.SGD(Mlp().parameters(), lr=0.1)
    with refused(folder, "optimizer sgd0", "4 of its parameters", "model.parameters()"):
        compile_into(folder, model, inputs, stale)
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
