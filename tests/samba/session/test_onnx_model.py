"""ONNX models take the place of torch models; the converter's own work is not tested here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from samba.errors import ArgumentError, MissingPackage
from samba.session.onnx_model import OnnxUnsupported
from tests.api.covers import covers
from tests.samba.worlds import close

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
    with pytest.raises(ArgumentError, match="a list, wanted a torch"):
        compile_([])
    assert not list(tmp_path.rglob("*.pef"))
