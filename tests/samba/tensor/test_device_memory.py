"""sn_data, sn_grad, rdu and cpu, over a device that is a dict."""

from __future__ import annotations

import pytest
import torch

import samba
from samba.errors import ConversionError, NoGradient, NotTraced, SambaError, UnknownTensor
from samba.tensor.device_memory import hide_memory, show_memory
from tests.samba.fakes import FakeDevice


@pytest.fixture
def device():
    fake = FakeDevice(
        values={"w": torch.full((2,), 5.0), "pool": torch.full((2,), 9.0)},
        grads={"w": torch.full((2,), 0.5)},
    )
    show_memory(fake)
    yield fake
    hide_memory(fake)


def test_tensors_alone_are_assigned(device):
    weight = samba.SambaParameter(torch.ones(2), name="w")
    weight.sn_grad = weight * 2
    assert device.grads["w"].tolist() == [2, 2]
    with pytest.raises(ConversionError, match=r"sn_data = .*found float"):
        weight.sn_data = 3.0


def test_the_region_name_is_used_when_the_name_is_unknown(device):
    tensor = samba.zeros(2, name="other", region_name="pool")
    assert tensor.sn_data.tolist() == [9, 9]


def test_rdu_copies_values_and_gradient(device):
    weight = samba.SambaParameter(torch.ones(2), name="w")
    weight.rdu()
    assert device.values["w"].tolist() == [1, 1]
    assert device.grads["w"].tolist() == [0.5, 0.5]
    weight.grad = torch.full((2,), 4.0)
    weight.rdu()
    assert device.grads["w"].tolist() == [4, 4]
    pool = samba.zeros(2, name="pool")
    pool.requires_grad_()
    pool.grad = torch.ones(2)
    pool.rdu()
    assert device.values["pool"].tolist() == [0, 0]
    assert "pool" not in device.grads


def test_rdu_materializes_empty_tensors(device):
    tensor = samba.SambaTensor(shape=(2,), name="w", materializer=lambda t: torch.zeros(t.shape))
    tensor.rdu()
    assert device.values["w"].tolist() == [0, 0]


def test_cpu_takes_new_memory_and_cpu_in_place_the_old(device):
    source = torch.ones(2)
    weight = samba.from_torch_tensor(source, name="w")
    weight.cpu()
    assert weight.tolist() == [5, 5]
    assert source.tolist() == [1, 1]
    assert weight.torch().tolist() == [5, 5]
    weight = samba.from_torch_tensor(source, name="w")
    weight.cpu_()
    assert source.tolist() == [5, 5]
    source.zero_()
    weight.cpu(inplace=True)
    assert source.tolist() == [5, 5]
    empty = samba.SambaTensor(shape=(2,), name="w")
    empty.cpu_()
    assert empty.tolist() == [5, 5]


def test_cpu_brings_the_gradient_of_what_is_trained(device):
    weight = samba.SambaParameter(torch.ones(2), name="w")
    weight.cpu()
    assert weight.grad.tolist() == [0.5, 0.5]
    grad = weight.grad
    device.grads["w"] = torch.full((2,), 7.0)
    weight.cpu_()
    assert grad.tolist() == [7, 7]
    frozen = samba.SambaParameter(torch.ones(2), requires_grad=False, name="w")
    frozen.cpu()
    assert frozen.grad is None


def test_the_dtype_of_the_host_is_kept(device):
    weight = samba.ones(2, dtype=torch.bfloat16, name="w")
    weight.cpu()
    assert weight.dtype == torch.bfloat16
    assert weight.tolist() == [5, 5]


def test_cpu_returns_nothing(device):
    """As documented; torch's returns the tensor, for which there is ``torch()``."""
    for weight in (samba.ones(2, name="w"), samba.SambaParameter(torch.ones(2), name="w")):
        assert weight.cpu() is None
        assert weight.torch().tolist() == [5, 5]


def test_module_cpu_is_a_transfer(device):
    class W(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

    model = samba.from_torch_model_(W())
    device.values[model.weight.sn_name] = torch.full((2,), 8.0)
    model.cpu()
    assert model.weight.tolist() == [8, 8]


ACCESSES = {
    "sn_data": lambda t: t.sn_data,
    "sn_grad": lambda t: t.sn_grad,
    "set sn_data": lambda t: setattr(t, "sn_data", torch.ones(2)),
    "set sn_grad": lambda t: setattr(t, "sn_grad", torch.ones(2)),
    "rdu": lambda t: t.rdu(),
    "cpu": lambda t: t.cpu(),
    "cpu_": lambda t: t.cpu_(),
}


@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
def test_nothing_traced(access):
    with pytest.raises(NotTraced, match=r"of w: nothing is on the device yet\. Call .*trace_graph"):
        access(samba.ones(2, name="w"))


@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
def test_unknown_and_unnamed_tensors(device, access):
    with pytest.raises(UnknownTensor, match="of x: the device holds no tensor of that name"):
        access(samba.ones(2, name="x"))
    with pytest.raises(UnknownTensor, match="an unnamed SambaTensor: the device finds tensors by"):
        access(samba.ones(2))


def test_no_gradient(device):
    tensor = samba.ones(2, name="pool")
    with pytest.raises(NoGradient) as caught:
        _ = tensor.sn_grad
    assert caught.value.name == "pool"
    assert str(caught.value) == (
        "sn_grad of pool: the program holds no gradient for it; it was compiled with "
        "requires_grad=False or for inference. Set requires_grad_(True) before "
        "samba.session.compile(...) and trace_graph(...), and compile again."
    )
    with pytest.raises(NoGradient):
        tensor.sn_grad = torch.ones(2)
    assert issubclass(NoGradient, SambaError)


def test_module_cpu_leaves_what_is_on_the_host_only():
    layer = samba.from_torch_model_(torch.nn.Linear(2, 2))
    before = layer.weight.tolist()
    assert layer.cpu() is layer
    assert layer.weight.tolist() == before


def test_an_eager_result_is_on_the_host_already(device):
    result = samba.ones(2, name="w") + 1
    with pytest.raises(UnknownTensor):
        result.cpu()
    assert result.torch().numpy().tolist() == [2, 2]
