"""Linear layers of 8 bits against torch's own quantized tensors, on the host and on the device."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization.qconfig import (
    default_dynamic_qconfig,
    default_per_channel_qconfig,
    float16_dynamic_qconfig,
)

import samba
import samba.utils as utils
from samba.errors import ArgumentError
from sambaflow.frameworks.quantized.quantized_linear import (
    QuantizedLinear,
    SNQConfig,
    quantize_model,
)
from tests.samba.worlds import close

SCHEMES = {"per tensor": default_dynamic_qconfig, "per channel": default_per_channel_qconfig}


class Net(nn.Module):
    """Two linear layers, one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x).relu())


def quantized(model: nn.Module, qconfig) -> nn.Module:
    """As scripts make it; torch says that its way will go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.ao.quantization.quantize_dynamic(
            model,
            qconfig_spec={nn.Linear: qconfig},
            dtype=torch.qint8,
            mapping={nn.Linear: QuantizedLinear},
        )


def torch_quantized(weight: torch.Tensor, qconfig) -> torch.Tensor:
    observer = qconfig.weight()
    observer(weight)
    scales, points = observer.calculate_qparams()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation.*")
        if scales.numel() == 1:
            return torch.quantize_per_tensor(weight, float(scales), int(points), torch.qint8)
        return torch.quantize_per_channel(weight, scales, points, 0, torch.qint8)


@pytest.mark.parametrize("qconfig", SCHEMES.values(), ids=SCHEMES)
def test_weights_are_torchs_and_the_product_takes_their_values(qconfig):
    model = Net()
    small = quantized(model, qconfig)
    x = torch.randn(5, 8)
    wanted = [torch_quantized(layer.weight.detach(), qconfig) for layer in model.children()]
    for layer, weight in zip(small.children(), wanted, strict=True):
        assert isinstance(layer, QuantizedLinear) and layer.weight.is_quantized
        assert torch.equal(layer.weight_int8, weight.int_repr())
        assert torch.equal(layer.weight.dequantize(), weight.dequantize())
    hidden = F.linear(x, wanted[0].dequantize(), model.hidden.bias).relu()
    assert torch.equal(small(x), F.linear(hidden, wanted[1].dequantize()))


@pytest.mark.parametrize("qconfig", SCHEMES.values(), ids=SCHEMES)
def test_the_device_multiplies_as_the_host_does(tmp_path, qconfig):
    host = quantized(Net(), qconfig)
    with samba.lazy_param(quantized=True):
        model = copy.deepcopy(host)
    samba.from_torch_model_(model)
    x = samba.from_torch_tensor(torch.randn(5, 8), name="x")
    config = {"output_folder": str(tmp_path), "inference": True}
    pef = samba.session.compile(model, (x,), config_dict=config)
    path = tmp_path / "int8.pt"
    torch.save(host.state_dict(), path)
    other = samba.from_torch_model_(quantized(Net(), qconfig))
    other.load_state_dict(torch.load(path))
    utils.trace_graph(other, (x,), pef=pef, config_dict=config)
    (found,) = samba.session.run((x,), other.output_tensors)
    close(found, host(samba.to_torch(x)).detach())
    (held,) = samba.session.get_tensors_by_name(["net__head__weight_int8"])
    assert torch.equal(samba.to_torch(held), host.head.weight_int8)
    # Its dequantized values live inside a section: the device has no memory for them.
    with pytest.raises(samba.SambaError, match=r"no tensor of that name.*net__head__weight_int8"):
        samba.session.get_tensors_by_name(["net__head__weight"])


def test_without_a_qconfig_there_is_one_scale():
    layer = nn.Linear(8, 6)
    plain = QuantizedLinear.from_float(layer)
    layer.qconfig = default_dynamic_qconfig
    assert torch.equal(plain.weight_int8, QuantizedLinear.from_float(layer).weight_int8)
    assert "in_features=8, out_features=6, bias=True" in repr(plain)


def test_what_is_no_linear_layer_of_8_bits_is_refused():
    with pytest.raises(ArgumentError, match=r"found Conv1d, expected a torch\.nn\.Linear"):
        QuantizedLinear.from_float(nn.Conv1d(1, 1, 1))
    layer = nn.Linear(2, 2)
    layer.qconfig = float16_dynamic_qconfig
    with pytest.raises(ArgumentError, match=r"found torch\.float16"):
        QuantizedLinear.from_float(layer)


def test_a_configuration_whose_meaning_is_not_documented_quantizes_nothing():
    config = SNQConfig(quant_method="fp8", weight_block_size=[128, 128])
    with pytest.raises(RuntimeError, match="refuses them") as caught:
        quantize_model(Net(), config)
    assert caught.value.fields == ("quant_method", "weight_block_size")
    assert caught.value.deviation == "undocumented-quantization"
