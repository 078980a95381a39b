"""common_app_driver, PEF metadata, comparison and the small helpers."""

from __future__ import annotations

import atexit
import inspect
import json
import os
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import samba
import sambaflow
from pef_schema import write_pef
from pef_schema.errors import PefUnwritable, SambaError
from samba import utils
from samba.abexit import SambaAtexit
from samba.errors import ArgumentError
from samba.test import TestWithGold
from samba.utils import argparser, measure, parse_dtype, utils as tracing
from samba.utils.benchmark_acc import AccuracyReport
from samba.utils.common import common_app_driver
from samba.utils.numeric import NotClose
from samba.utils.pef_utils import (
    MissingPefInfo,
    PefInfoStruct,
    get_pef_info,
    get_pefmeta,
    get_pefmeta_dict,
)
from tests.api.covers import covers
from tests.pef_schema.samples import training
from tests.processes import finished


@pytest.fixture
def calls(monkeypatch):
    """What the driver calls, in order, instead of doing it; the arguments must fit."""
    made: list[tuple[str, tuple, dict]] = []

    def replace(owner, name):
        signature = inspect.signature(getattr(owner, name))

        def record(*args, **kwargs):
            signature.bind(*args, **kwargs)
            made.append((name, args, kwargs))

        monkeypatch.setattr(owner, name, record)

    replace(samba.session, "compile")
    replace(tracing, "trace_graph")
    replace(measure, "measure_performance")
    replace(measure, "measure_sections")
    return made


def parsed(*arguments: str) -> Namespace:
    return argparser.parse_app_args(list(arguments))


MODEL = torch.nn.Linear(2, 2)


@covers("samba.utils.common.common_app_driver(name, app_dir)")
def test_driver_compiles(calls):
    args = parsed("compile", "--pef-name=x")
    assert common_app_driver(args, MODEL, "inputs", "optim", name="app", app_dir="d") is None
    ((name, positional, keywords),) = calls
    assert (name, positional) == ("compile", (MODEL, "inputs", "optim"))
    assert keywords["config_dict"] == vars(args)
    assert (keywords["name"], keywords["app_dir"]) == ("app", "d")
    assert keywords["pef_metadata"] == get_pefmeta(args, MODEL)


@pytest.mark.parametrize("command", ["run", "test"])
def test_driver_leaves_run_and_test_to_the_app(calls, command):
    common_app_driver(args=parsed(command, "--pef=p"), model=MODEL, inputs=(), optim=None)
    assert calls == []


def test_driver_measures(calls):
    args = parsed("measure-performance", "--pef=p", "-b=4", "--bench-report-json=r", "-n=3")
    common_app_driver(args, MODEL, "inputs", "optim", squeeze_bs_dim=True, get_output_grads=False)
    (first, positional, keywords), (second, measured, options) = calls
    assert (first, positional) == ("trace_graph", (MODEL, "inputs", "optim"))
    assert keywords == {
        "init_output_grads": True,
        "pef": "p",
        "mapping": "section",
        "data_parallel_mode": "normal",
    }
    assert (second, measured) == ("measure_performance", (MODEL, "inputs", 4, 1, False))
    assert (options["n_iterations"], options["json"]) == (3, "r")


@covers("samba.utils.common.common_app_driver(init_output_grads)")
@pytest.mark.parametrize("wanted", [True, False])
def test_driver_hands_on_whether_output_gradients_are_initialised(calls, wanted):
    common_app_driver(parsed("compile"), MODEL, (), "optim", init_output_grads=wanted)
    common_app_driver(
        parsed("measure-performance", "--pef=p"), MODEL, (), "optim", init_output_grads=wanted
    )
    (first, _, compiled), (second, _, measured), _ = calls
    assert (first, second) == ("compile", "trace_graph")
    assert compiled["init_output_grads"] is measured["init_output_grads"] is wanted


def test_driver_measures_sections_of_an_inference_pef(calls):
    args = parsed("measure-sections", "--pef=p", "--inference", "--num-sections=2", "--json=old")
    common_app_driver(args, MODEL, "inputs", "optim")
    (_, positional, keywords), (second, _, options) = calls
    assert positional[2] is None
    assert keywords["init_output_grads"] is False
    assert second == "measure_sections"
    assert (options["num_sections"], options["json"]) == (2, "old")


def test_driver_refuses_unknown_commands():
    with pytest.raises(ArgumentError, match="found 'train', expected one of compile, run"):
        common_app_driver(Namespace(command="train"), MODEL, ())


def test_a_driver_without_parsed_arguments_says_so():
    with pytest.raises(ArgumentError, match=r"args\.command: found None, expected one of compile"):
        common_app_driver({"command": "compile"}, MODEL, ())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: AccuracyReport(epochs=1).save(None), r"save\(path\): found NoneType None"),
        (lambda: argparser.parse_yaml_to_args(None, Namespace()), r"yaml_file\): found NoneType"),
        (lambda: get_pefmeta(None, MODEL), r"get_pefmeta\(args\): found NoneType None"),
        (lambda: utils.TrainingCheckpoint(None, MODEL), r"Checkpoint\(path\): found NoneType None"),
        (lambda: TestWithGold(Namespace(gold_file_path=None), "a", MODEL), "gold_file_path: found"),
        (lambda: utils.checkpoint.save_checkpoint(MODEL, 5), "path: found int 5"),
    ],
)
def test_a_path_that_was_not_given_is_told_by_name(call, text):
    """As apps hand on an option that they were not given."""
    with pytest.raises(ArgumentError, match=text):
        call()


def test_pefmeta_is_text():
    args = parsed("compile", "-b=8")
    args.callback = print
    args.tags = {"b", "a"}
    args.folder = Path("data") / "x"
    args.nested = {"rate": [1, 2.5]}
    found = get_pefmeta(args, MODEL)
    assert all(isinstance(value, str) for value in found.values())
    assert found["batch_size"] == "8"
    assert found["mapping"] == "section"
    assert found["model"] == repr(MODEL)
    assert found["samba_version"] == samba.__version__
    assert found["tags"] == "['a', 'b']"
    assert found["folder"] == os.path.join("data", "x")
    assert found["nested"] == "{'rate': [1, 2.5]}"
    assert "callback" not in found
    assert get_pefmeta_dict(vars(args), MODEL) == found


def test_pef_info(monkeypatch):
    stored = Namespace(metadata=(("batch_size", "8"), ("model", "Linear()"), ("shapes", "[[1]]")))
    monkeypatch.setattr("samba.utils.pef_utils.read_pef", lambda path: stored)
    keys = {key: PefInfoStruct(None) for key in ("shapes", "batch_size", "model")}
    assert get_pef_info("m.pef", keys) == {"shapes": [[1]], "batch_size": 8, "model": "Linear()"}
    with pytest.raises(ValueError, match="no metadata for lr; it holds batch_size") as caught:
        get_pef_info("m.pef", {"lr": PefInfoStruct()})
    assert isinstance(caught.value, MissingPefInfo)
    many = MissingPefInfo(pef="m.pef", missing=["key_39"], present=[f"key_{i}" for i in range(90)])
    assert "it holds key_39, " in str(many) and " and 82 more." in str(many)
    assert len(many.present) == 90
    assert caught.value.missing == ("lr",)


def test_assert_close_is_the_allclose_form():
    reference = torch.tensor([100.0, 0.0])
    utils.assert_close(torch.tensor([101.0, 0.0029]), reference, "ok")
    utils.assert_close(reference, torch.tensor([100.0, 0.0]), "by position", 1e-3)
    with pytest.raises(AssertionError) as caught:
        utils.assert_close(torch.tensor([101.25, 0.0]), reference, "loss")
    assert isinstance(caught.value, NotClose)
    assert isinstance(caught.value, SambaError)
    assert str(caught.value) == (
        "loss: 1 of 2 elements differ by more than 0.003 + 0.01 * |reference|; the worst, at "
        "(0,), is 101.25 where 100 was expected"
    )
    assert caught.value.max_difference == 1.25


def test_assert_close_bites_just_outside_the_tolerance():
    reference = torch.ones(3, dtype=torch.float64)
    for threshold, rtol in ((1e-3, 0.0), (0.0, 1e-3), (5e-4, 5e-4)):
        utils.assert_close(reference + 0.99e-3, reference, "in", threshold, rtol=rtol)
        with pytest.raises(NotClose):
            utils.assert_close(reference + 1.01e-3, reference, "out", threshold, rtol=rtol)


@pytest.mark.parametrize("tolerance", ["0.1", None, -1.0])
def test_a_tolerance_is_a_number(tolerance):
    with pytest.raises(ArgumentError, match=r"assert_close\(threshold\): found .* 0 or more"):
        utils.assert_close(torch.ones(1), torch.ones(1), "loss", tolerance)


def test_assert_close_takes_what_scripts_give_it(capsys):
    parameter = samba.SambaParameter(torch.ones(2, 3))
    utils.assert_close(parameter, torch.ones(2, 3), "w", threshold=1e-6)
    utils.assert_close(torch.ones(2, 3).bfloat16(), parameter * 1, "w", visualize=True)
    assert capsys.readouterr().out == "w: max difference 0, mean 0\n"
    utils.assert_close(torch.ones(30, 136), torch.ones(1, 30, 136), "broadcast")
    utils.assert_close(torch.ones(0), torch.ones(0), "empty")
    nan = torch.tensor([float("nan"), 1.0])
    utils.assert_close(nan, nan, "NaN")
    with pytest.raises(NotClose, match=r"the worst, at \(0,\), is 1 where nan was expected"):
        utils.assert_close(torch.ones(2), nan, "NaN")
    with pytest.raises(NotClose, match=r"shapes \(2,\) and \(3,\) do not broadcast"):
        utils.assert_close(torch.ones(2), torch.ones(3), "shapes")
    with pytest.raises(NotClose, match=r"at \(1, 0\)"):
        utils.assert_close(torch.eye(2), torch.tensor([[1.0, 0.1], [2.0, 1.0]]), "index")
    utils.assert_close(torch.tensor([1, 2]), torch.tensor([1, 2]), "integers")


def test_where_and_who(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert utils.get_file_dir("app.py") == str(tmp_path.resolve())
    assert utils.get_file_dir(Path(__file__)) == str(Path(__file__).resolve().parent)
    assert (utils.get_rank(), utils.get_world_size(), utils.is_main_process()) == (0, 1, True)
    utils.create_mac_resource_report()


def test_utils_are_plain_attributes():
    assert samba.utils.trace_graph is tracing.trace_graph
    assert samba.utils.measure_performance is measure.measure_performance
    assert samba.utils.argparser is argparser
    assert samba.utils.utils.init_output_grads is utils.init_output_grads
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = utils.nonsense
    assert all(hasattr(utils, name) for name in utils.__all__)


def test_accuracy_report(tmp_path):
    path = tmp_path / "acc.json"
    metrics = {"acc": torch.tensor(97.5), "loss": 0.25}
    AccuracyReport(val_metrics=metrics, batch_size=32, num_iterations=100).save(path)
    assert json.loads(path.read_text()) == {
        "val_metrics": {"acc": 97.5, "loss": 0.25},
        "batch_size": 32,
        "num_iterations": 100,
    }
    AccuracyReport(val_accuracy=91.0, epochs=2).save(str(path))
    assert json.loads(path.read_text()) == {"val_accuracy": 91.0, "epochs": 2}
    with pytest.raises(PefUnwritable):
        AccuracyReport(val_accuracy=1.0).save(tmp_path / "no" / "acc.json")


def test_weight_norm():
    layer = torch.nn.Linear(3, 4)
    x = torch.randn(5, 3)
    expected = layer(x)
    assert utils.weight_norm_(layer) is layer
    assert torch.allclose(layer(x), expected, rtol=1e-6, atol=1e-6)
    model = samba.from_torch_model_(torch.nn.Sequential(layer))
    assert [p.sn_name for p in model.parameters()] == [
        "sequential__0__bias",
        "sequential__0__weight_magnitude",
        "sequential__0__weight_direction",
    ]
    model(x).sum().backward()
    reference = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4), dim=0)
    reference.parametrizations.weight.original0.data = layer.weight_magnitude.data
    reference.parametrizations.weight.original1.data = layer.weight_direction.data
    reference.bias.data = layer.bias.data
    reference(x).sum().backward()
    original = reference.parametrizations.weight
    assert torch.allclose(layer.weight_magnitude.grad, original.original0.grad, atol=1e-5)
    assert torch.allclose(layer.weight_direction.grad, original.original1.grad, atol=1e-5)
    with pytest.raises(ArgumentError, match="found Conv2d"):
        utils.weight_norm_(torch.nn.Conv2d(1, 1, 1))
    exported = torch.export.export(model, (x,), strict=False)
    assert len(exported.graph_signature.parameters) == 3


def test_environment_and_directives():
    assert samba.env.use_mock_samba_runtime() is False
    samba.env.enable_conv_grad_accum_stoc()
    samba.env.enable_addbias_grad_accum_stoc()
    samba.env.disable_sgd_stoc()
    assert samba.env.stochastic_rounding() == {
        "conv_grad_accum": True,
        "addbias_grad_accum": True,
        "sgd": False,
    }
    layer = torch.nn.Linear(2, 2)
    assert samba.directives.fusion_of(layer) is None
    samba.directives.op_fusion(layer, "Encoder")
    assert samba.directives.fusion_of(layer) == "Encoder"
    with samba.directives.op_fusion(func_name="outer", heuristic="x"):
        with samba.directives.op_fusion(func_name="inner", plugins=[1]):
            assert samba.directives.fusion_of() == "inner"
        assert samba.directives.fusion_of() == "outer"
    assert samba.directives.fusion_of() is None
    samba.directives.sdpa_directives({"sdp_block_size": 64})
    assert samba.directives.sdpa_settings()["sdp_block_size"] == 64
    with pytest.raises(ArgumentError, match="found no name"):
        samba.directives.op_fusion(layer)
    with pytest.raises(ArgumentError, match=r"expected a torch\.nn\.Module"):
        samba.directives.op_fusion("Encoder", "x")
    assert samba.is_internal() is False


@pytest.mark.slow
def test_import_is_light():
    code = "import sys, samba; print('jax' in sys.modules, samba.session.buffer_dict)"
    root = Path(samba.__file__).parents[1]
    done = finished(
        [sys.executable, "-c", code],
        cwd=root,
    )
    assert done.stdout.split() == ["False", "{}"], done.stderr


def test_version_is_the_packages():
    assert samba.__version__ == sambaflow.__version__


def test_a_command_that_measures_nothing_says_so(monkeypatch, capsys, tmp_path):
    write_pef(tmp_path / "p", training())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the command line sets another
    at_exit: list[tuple] = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    monkeypatch.setattr(
        atexit,
        "unregister",
        lambda f: at_exit.__setitem__(slice(None), [c for c in at_exit if c[0] != f]),
    )
    monkeypatch.setattr(sys, "argv", ["app.py", "measure-sections", "--pef=p"])
    parsed("measure-performance", "--pef=p")  # not the command of this process
    assert at_exit == []
    for _ in range(2):
        argparser.parse_app_args()
    (tell, *arguments), unread = at_exit
    ends: list[int] = []
    monkeypatch.setattr(SambaAtexit, "end", ends.append)
    monkeypatch.setattr(type(samba.session), "has_run", False)
    tell(*arguments)
    assert ends == [1]
    expected = "measure-sections: nothing was measured, because the script does nothing with"
    assert capsys.readouterr().err.startswith(expected)
    monkeypatch.setattr(type(samba.session), "has_run", True)
    tell(*arguments)  # it ran something, and so may have measured by itself
    assert ends == [1]
    assert capsys.readouterr().err.startswith("measure-sections: nothing was measured. It would")
    with pytest.raises(ArgumentError, match="n_iterations"):
        samba.utils.measure_sections(MODEL, (), n_iterations=0)
    assert at_exit == [unread]


# -- parse_dtype -----------------------------------------------------------------------


NAMES = {
    "bfloat16": torch.bfloat16,
    "torch.bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float": torch.float32,
    "fp32": torch.float32,
    "torch.float16": torch.float16,
    "int16": torch.int16,
    "bool": torch.bool,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_torchs_with_or_without_its_own(name):
    assert parse_dtype(name) is NAMES[name]
    assert parse_dtype(NAMES[name]) is NAMES[name]


@pytest.mark.parametrize("name", ["", "float33", "nn", "Tensor", None, "torch.torch.int8", "a b"])
def test_what_is_no_dtype_is_refused(name):
    with pytest.raises(ArgumentError, match="expected a dtype of torch"):
        parse_dtype(name)
