"""Device memory of SambaTensors on a real device, as their page shows it."""

from __future__ import annotations

import pytest
import torch

import samba
import samba.utils as utils
from samba.errors import NotTraced
from tests.api.covers import covers
from tests.samba.session.loading import load
from tests.samba.shared_traces import share_trace


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).square().mean()


@pytest.fixture(scope="module")
def pef(tmp_path_factory):
    model, inputs, optimizer = parts()
    folder = str(tmp_path_factory.mktemp("pef"))
    return samba.session.compile(
        model, inputs, optimizer, name="net", config_dict={"output_folder": folder}
    )


def parts():
    torch.manual_seed(0)
    model = share_trace(samba.from_torch_model_(Net()))
    return model, (samba.ones(4, 3, name="x"),), samba.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def weight(pef):
    """The weight after one step: the device has moved on, the host has not."""
    model, inputs, optimizer = parts()
    outputs = utils.trace_graph(model, inputs, optimizer, pef=pef)
    samba.session.run(inputs, outputs)
    return model.linear.weight


@covers("samba.SambaTensor.sn_data", ".sn_grad")
def test_device_memory_is_read_and_written_by_copy(weight):
    host = weight.data.clone()
    data, grad = weight.sn_data, weight.sn_grad
    assert type(data) is type(grad) is torch.Tensor
    assert torch.allclose(data, host - 0.1 * grad)
    assert grad.abs().sum() > 0
    data.zero_()
    grad.zero_()
    assert weight.sn_data.abs().sum() > 0  # what was read is a copy
    weight.sn_data = samba.full((2, 3), 2.0)
    weight.sn_grad = torch.full((2, 3), 3.0)
    assert weight.sn_data.tolist() == [[2] * 3] * 2
    assert weight.sn_grad.tolist() == [[3] * 3] * 2
    assert torch.equal(weight.data, host)
    assert weight.grad is None


@covers("samba.SambaTensor.rdu", ".cpu")
def test_rdu_and_cpu_take_values_and_gradient_along(weight):
    host, device, device_grad = weight.data.clone(), weight.sn_data, weight.sn_grad
    weight.cpu()
    assert torch.equal(weight.data, device)
    assert torch.equal(weight.grad, device_grad)
    weight.data = host / torch.norm(host)
    weight.grad = host
    assert torch.equal(weight.sn_data, device)  # the host alone was changed
    weight.rdu()
    assert torch.equal(weight.sn_data, weight.data)
    assert torch.equal(weight.sn_grad, host)


@covers("samba.SambaTensor.cpu", ".cpu_", ".cpu(inplace)")
def test_cpu_in_place_keeps_the_memory(weight):
    before = weight.data
    weight.cpu()
    assert weight.data_ptr() != before.data_ptr()
    assert not torch.equal(before, weight.data)
    shared = weight.data
    for fetch in (weight.cpu_, lambda: weight.cpu(inplace=True)):
        weight.sn_data = weight.sn_data + 1
        fetch()
        assert weight.data_ptr() == shared.data_ptr()
        assert torch.equal(shared, weight.sn_data)


@covers("samba.SambaTensor.fast_access", ".is_fast_access")
def test_tracing_marks_inputs_and_gradients_of_outputs(weight):
    output = "net__mean__outputs__0"
    assert samba.session.get_samba_tensor_by_name(output).sn_grad_name == f"{output}__grad"
    marked = samba.SambaTensor.is_fast_access
    assert marked("x") and marked(f"{output}__grad")
    assert samba.ones(4, 3, name="x").fast_access
    assert not marked(weight.sn_name) and not marked(output)
    samba.session.reset()
    assert not marked("x") and not marked(f"{output}__grad")


@covers("samba.SambaTensor.sn_region_name", "samba.SambaTensor(region_name)")
def test_tensors_of_one_region_share_their_place_on_the_device(tmp_path):
    class Pair(torch.nn.Module):
        def forward(self, x, y):
            return x * 2, y + 1

    a = samba.from_torch_tensor(torch.ones(3), name="a")
    b = samba.SambaTensor(torch.full((3,), 5.0), name="b", region_name="a")
    outputs = load(Pair(), (a, b), tmp_path, inference=True)
    for given in (torch.full((3,), 3.0), torch.full((3,), 4.0)):
        samba.session.run(samba.from_torch_tensor(given, name="a"), outputs)
        assert torch.equal(a.sn_data, given) and torch.equal(b.sn_data, given)
        assert torch.equal(outputs[1].sn_data, given + 1)
    b.sn_data = torch.zeros(3)
    assert not a.sn_data.any()


@covers("samba.SambaTensor.sn_data", ".rdu")
def test_there_must_be_a_device():
    tensor = samba.ones(2, name="x")
    with pytest.raises(NotTraced, match="sn_data of x"):
        _ = tensor.sn_data
    with pytest.raises(NotTraced, match=r"rdu\(\) of x"):
        tensor.rdu()
