"""Models that begin elsewhere: on the meta device, where values come later, and as ONNX files."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from samba.errors import ArgumentError, MissingPackage, NoHostData
from samba.session.onnx_model import OnnxUnsupported
from tests.api.covers import covers
from tests.samba.worlds import Mlp, close, features, named


def optimizers(model: Mlp, of: Any = samba.optim) -> list[torch.optim.Optimizer]:
    """One that makes its states at the first step, and one that makes them at once."""
    betas = (0.9, 0.999)
    return [
        of.AdamW(model.first.parameters(), lr=0.05, betas=betas, weight_decay=0.1),
        of.Adagrad(model.second.parameters(), lr=0.05, initial_accumulator_value=0.5),
    ]


def without_values() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    with torch.device("meta"):
        model = Mlp()
    samba.from_torch_model_(model)
    return model, optimizers(model)


@pytest.fixture(scope="module")
def pef(tmp_path_factory):
    model, optimizer = without_values()
    folder = str(tmp_path_factory.mktemp("meta"))
    config = {"output_folder": folder}
    return samba.session.compile(model, named(features()), optimizer, config_dict=config)


@pytest.fixture
def traced(pef):
    model, optimizer = without_values()
    inputs = named(features())
    utils.trace_graph(
        model, inputs, optimizer, pef=pef, loss_indices=[0], transfer_device=False, config_dict={}
    )
    return model, optimizer, inputs


def test_to_device_takes_the_model_that_was_converted_since(traced):
    model, ours, inputs = traced
    torch.manual_seed(3)
    host = Mlp()
    theirs = optimizers(host, torch.optim)
    other = samba.from_torch_model_(copy.deepcopy(host))
    samba.session.to_device()
    for _ in range(3):
        outputs = samba.session.run(inputs, model.output_tensors)
        host.zero_grad()
        wanted = host(**features())
        wanted[0].backward()
        for optimizer in theirs:
            optimizer.step()
        for output, want in zip(outputs, wanted, strict=True):
            close(samba.to_torch(output), want.detach())
    samba.session.to_cpu(other, ours)
    for path, weight in host.named_parameters():
        found = samba.to_torch(other.get_parameter(path)).detach()
        torch.testing.assert_close(found, weight.detach(), rtol=1e-5, atol=1e-6)
    for optimizer, twin, key in zip(ours, theirs, ("exp_avg", "sum"), strict=True):
        found, wanted = optimizer.state_dict()["state"], twin.state_dict()["state"]
        for index, state in wanted.items():
            assert float(found[index]["step"]) == float(state["step"]) == 3
            torch.testing.assert_close(found[index][key], state[key], rtol=1e-5, atol=1e-6)


def test_without_another_model_the_missing_values_are_named(traced):
    samba.from_torch_model_(nn.Linear(2, 2))
    with pytest.raises(NoHostData, match="mlp__first__weight"):
        samba.session.to_device()


def test_another_model_of_other_shapes_is_refused(traced):
    other = Mlp()
    other.second = nn.Linear(6, 4)
    samba.from_torch_model_(other)
    with pytest.raises(ArgumentError, match=r"second\.weight of the model: found shape \[4, 6\]"):
        samba.session.to_device()


def with_values(pef: str, **keywords: bool) -> tuple[nn.Module, list[Any], Any]:
    model = samba.from_torch_model_(Mlp())
    made, inputs = optimizers(model), named(features())
    utils.trace_graph(model, inputs, made, pef=pef, config_dict={}, **keywords)
    return model, made, inputs


def test_a_traced_model_with_values_is_the_one_that_goes(pef):
    model, *_ = with_values(pef, transfer_device=False)
    samba.from_torch_model_(Mlp())
    samba.session.to_device()
    close(model.first.weight.sn_data, samba.to_torch(model.first.weight).detach())


def test_optimizer_states_of_empty_parameters_are_as_torch_begins_when_rdu_asks_for_them(traced):
    handles = samba.session.optim_dict
    begins = {name: 0.5 if name.endswith("sum") else 0.0 for name in handles}
    assert sorted(begins.values())[-2:] == [0.5, 0.5] and len(begins) >= 6
    for name, handle in handles.items():
        assert not handle.has_data
        handle.rdu()
        assert torch.equal(handle.sn_data, torch.full(handle.shape, begins[name]))


def test_rdu_of_an_optimizer_state_sends_what_torch_holds(pef):
    model, made, inputs = with_values(pef)
    samba.session.run(inputs, model.output_tensors)
    samba.session.to_cpu(model, made)
    samba.session.run(inputs, model.output_tensors)
    kept = made[0].state[model.first.weight]["exp_avg"].clone()
    handle = next(t for n, t in samba.session.optim_dict.items() if "first__weight" in n)
    assert not torch.equal(handle.sn_data, kept)
    handle.rdu()
    assert torch.equal(handle.sn_data, kept)


# -- ONNX models; the converter's own work is not tested here --------------------------


ModelProto = type("ModelProto", (), {"__module__": "onnx.onnx_ml_pb2"})


def proto(name: str = "net") -> Any:
    """What stands for an ONNX model; its class is told by its name alone."""
    model = ModelProto()
    model.graph = SimpleNamespace(name=name)
    return model


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], None]:
    """Puts a converter in the place of onnx2torch."""

    def put(convert: Callable[[Any], Any]) -> None:
        module = ModuleType("onnx2torch")
        module.convert = convert
        monkeypatch.setitem(sys.modules, "onnx2torch", module)

    return put


@covers("samba.utils.trace_graph(model)")
def test_an_onnx_model_runs_as_the_module_made_of_it(tmp_path, converter):
    made: list[nn.Module] = []

    def convert(model: Any) -> nn.Module:
        torch.manual_seed(len(made))
        made.append(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))
        return made[-1]

    converter(convert)
    model, other = proto(), proto()
    x = samba.randn(3, 4, name="x")
    config = {"output_folder": str(tmp_path)}
    pef = samba.session.compile(model, (x,), config_dict=config, inference=True)
    outputs = utils.trace_graph(model, (x,), pef=pef, config_dict={})
    assert len(made) == 1  # compile and trace have one module
    (out,) = samba.session.run((x,), outputs)
    close(out, made[0](x.torch()).detach())
    with torch.no_grad():
        made[0][2].bias.add_(1)
    samba.session.to_rdu(model)
    (shifted,) = samba.session.run((x,), outputs)
    close(shifted, samba.to_torch(out) + 1)
    with torch.no_grad():
        made[0][2].bias.zero_()
    samba.session.to_cpu(model)
    close(made[0](x.torch()).detach(), samba.to_torch(shifted))
    utils.trace_graph(other, (x,), pef=pef, config_dict={})
    assert len(made) == 2


def test_what_is_missing_or_cannot_be_converted_is_said(tmp_path, converter, monkeypatch):
    def compile_(model: Any) -> None:
        samba.session.compile(model, torch.ones(1), config_dict={"output_folder": str(tmp_path)})

    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(MissingPackage, match=r"sambaflow-emulator\[onnx\]"):
        compile_(proto())
    monkeypatch.delitem(sys.modules, "onnx2torch")
    (tmp_path / "onnx2torch.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OnnxUnsupported, match=r"nms does not exist.*same build as torch"):
        compile_(proto())

    def convert(model: Any) -> nn.Module:
        raise NotImplementedError("Converter is not implemented (Loop, 16)")

    converter(convert)
    with pytest.raises(OnnxUnsupported, match=r"ONNX model net: .*\(Loop, 16\)"):
        compile_(proto())
    with pytest.raises(ArgumentError, match="found list, expected a torch"):
        compile_([])
    assert not list(tmp_path.rglob("*.pef"))
