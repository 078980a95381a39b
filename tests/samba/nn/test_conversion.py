"""from_torch_model_ and its older spellings, and converted models as plain torch modules."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import samba
from samba.errors import ConversionError
from samba.support.naming import join_name
from tests.api.covers import covers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x):
        return self.head(self.block(x)) * self.scale


@covers("samba.from_torch_model_")
def test_names_of_parameters_modules_and_buffers():
    model = Net()
    assert samba.from_torch_model_(model) is model
    assert {path: p.sn_name for path, p in model.named_parameters()} == {
        "block.linear.weight": "net__block__linear__weight",
        "block.linear.bias": "net__block__linear__bias",
        "block.norm.weight": "net__block__norm__weight",
        "block.norm.bias": "net__block__norm__bias",
        "head.weight": "net__head__weight",
        "head.bias": "net__head__bias",
    }
    assert (model.name, model.block.linear.name) == ("net", "net__block__linear")
    assert {p.sn_grad_name for p in model.head.parameters()} == {
        "net__head__weight__grad",
        "net__head__bias__grad",
    }
    buffers = samba.session.buffer_dict
    assert list(buffers) == [
        "net__scale",
        "net__block__norm__running_mean",
        "net__block__norm__running_var",
        "net__block__norm__num_batches_tracked",
    ]
    assert buffers["net__scale"].sn_name == "net__scale"
    assert type(model.scale) is torch.Tensor


def test_buffers_share_memory():
    model = samba.from_torch_model_(Net())
    model(torch.randn(8, 3))
    mean = samba.session.buffer_dict["net__block__norm__running_mean"]
    assert torch.equal(mean.torch(), model.block.norm.running_mean)
    assert mean.abs().sum() > 0
    assert samba.session.buffer_dict["net__block__norm__num_batches_tracked"].item() == 1


def test_parameters_stay_the_same_objects():
    model = Net()
    before = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samba.from_torch_model_(model)
    after = list(model.parameters())
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert all(type(p) is samba.SambaParameter for p in after)
    assert all(isinstance(p, nn.Parameter) and isinstance(p, samba.SambaTensor) for p in after)
    weight = model.head.weight.data.clone()
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(weight, model.head.weight.data)


def test_tied_parameters_have_the_first_name():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    model = samba.from_torch_model_(Tied())
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.sn_name == "tied__embedding__weight"
    assert len(list(model.parameters())) == 1


def test_a_second_call_changes_nothing_and_repairs():
    model = samba.from_torch_model_(Net())
    names = [p.sn_name for p in model.parameters()]
    samba.from_torch_model_(model)
    assert [p.sn_name for p in model.parameters()] == names
    model.bfloat16()
    assert [p.sn_name for p in model.parameters()] == names
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    model.head.weight = nn.Parameter(model.head.weight.t())
    samba.from_torch_model_(model)
    assert type(model.head.weight) is samba.SambaParameter
    assert [p.sn_name for p in model.parameters()] == names
    mean = samba.session.buffer_dict["net__block__norm__running_mean"]
    assert mean.dtype == torch.bfloat16
    assert mean.data_ptr() == model.block.norm.running_mean.data_ptr()


def test_prefix():
    model = samba.from_torch_model_(nn.Linear(2, 2), "encoder")
    assert model.weight.sn_name == "encoder__linear__weight"
    assert model.name == "encoder__linear"
    samba.from_torch_model_(model, parent_module_prefix="decoder")
    assert model.weight.sn_name == "decoder__linear__weight"
    assert model.name == "decoder__linear"


def test_modules_keep_a_name_of_their_own():
    class Named(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.name = "mine"

    class Property(nn.Linear):
        @property
        def name(self):
            return "computed"

    class Child(nn.Module):
        def __init__(self):
            super().__init__()
            self.name = nn.Linear(2, 2)

    model = nn.Sequential(Named(), Property(2, 2), Child())
    samba.from_torch_model_(model)
    assert model[0].name == "mine"
    assert model[1].name == "computed"
    assert isinstance(model[2].name, nn.Linear)
    assert model[2].name.weight.sn_name == "sequential__2__name__weight"


def test_what_cannot_be_converted():
    with pytest.raises(ConversionError, match=r"found Tensor, expected a torch\.nn\.Module"):
        samba.from_torch_model_(torch.ones(1))
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    with pytest.raises(ConversionError, match=r"sequential__1__weight.*Lazy layers need"):
        samba.from_torch_model_(model)
    assert type(model[0].weight) is nn.Parameter


@pytest.mark.parametrize("spelling", ["from_torch_", "from_torch_model", "from_torch"])
def test_older_spellings_for_models(spelling):
    model = nn.Linear(2, 2)
    getattr(samba, spelling)(model)
    assert model.weight.sn_name == "linear__weight"


def test_older_spellings_for_tensors():
    tensor = samba.from_torch(torch.ones(2), name="x", batch_dim=0)
    assert (tensor.sn_name, tensor.batch_dim) == ("x", 0)
    assert type(samba.to_torch_tensor(tensor)) is torch.Tensor


def test_from_named_dict():
    label = samba.ones(2, name="label")
    wrong = samba.ones(2, name="wrong")
    made = samba.from_named_dict({"x": torch.ones(2), "label": label, "y": wrong, "mask": None})
    assert list(made) == ["x", "label", "y", "mask"]
    assert made["x"].sn_name == "x"
    assert made["label"] is label
    assert (made["y"].sn_name, wrong.sn_name) == ("y", "wrong")
    assert made["y"].data_ptr() == wrong.data_ptr()
    assert made["mask"] is None


def test_meta_parameters_become_empty_and_keep_ties():
    model = nn.Sequential(nn.Linear(3, 3, device="meta"), nn.Linear(3, 3, device="meta"))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    samba.from_torch_model_(model)
    assert model[1].weight is model[0].weight
    assert model[0].weight.sn_name == "sequential__0__weight"
    assert not model[0].bias.requires_grad
    assert not any(p.has_data for p in model.parameters())


def test_eager_results_are_those_of_torch():
    plain = Net()
    model = samba.from_torch_model_(copy.deepcopy(plain))
    x = torch.randn(8, 3)
    expected, result = plain(x), model(samba.from_torch_tensor(x, name="x"))
    assert type(result) is samba.SambaTensor
    assert torch.equal(result.torch(), expected)
    expected.square().mean().backward()
    result.square().mean().backward()
    for reference, parameter in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(reference.grad, parameter.grad)
    with torch.no_grad(), samba.patched_torch():
        assert torch.equal(samba.to_torch(model.eval()(x)), plain.eval()(x))
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_state_dict_round_trip_without_samba():
    model = samba.from_torch_model_(Net())
    model(torch.randn(8, 3))
    state = model.state_dict()
    assert isinstance(state["head.weight"], samba.SambaTensor)
    assert state["head.weight"].sn_name == "net__head__weight"
    file = io.BytesIO()
    torch.save({"model": state, "epoch": 3}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["model"]
    assert all(type(value) is torch.Tensor for value in loaded.values())
    plain, other = Net(), samba.from_torch_model_(Net())
    plain.load_state_dict(loaded)
    other.load_state_dict(loaded)
    other.load_state_dict(state)
    x = torch.randn(4, 3)
    expected = model.eval()(x).torch()
    assert torch.equal(plain.eval()(x), expected)
    assert torch.equal(other.eval()(x).torch(), expected)
    assert other.head.weight.sn_name == "net__head__weight"
    portable = {key: value.torch_tensor() for key, value in model.head.state_dict().items()}
    assert all(type(value) is torch.Tensor for value in portable.values())


def check_twin(twin: Net, model: Net) -> None:
    assert [p.sn_name for p in twin.parameters()] == [p.sn_name for p in model.parameters()]
    assert all(type(p) is samba.SambaParameter for p in twin.parameters())
    assert twin.head.name == "net__head"
    x = torch.randn(4, 3)
    assert torch.equal(twin.eval()(x).torch(), model.eval()(x).torch())
    with torch.no_grad():
        twin.head.weight.zero_()
    assert model.head.weight.abs().sum() > 0


def test_whole_modules_are_copied_and_pickled_with_names():
    model = samba.from_torch_model_(Net())
    model.output_tensors = (samba.zeros(4, 2, name="net__head__linear__outputs__0"),)
    model.constant = samba.ones(2, name="constant")
    check_twin(copy.deepcopy(model), model)
    check_twin(pickle.loads(pickle.dumps(model)), model)  # noqa: S301  # our own bytes
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    check_twin(twin, model)
    samba.from_torch_model_(twin)
    assert twin.head.weight.sn_name == "net__head__weight"


def test_moving_between_dtypes_keeps_parameters():
    model = samba.from_torch_model_(Net())
    weight = model.head.weight
    for move in (lambda m: m.double(), lambda m: m.to(torch.bfloat16), lambda m: m.cpu()):
        move(model)
        assert model.head.weight is weight
        assert type(weight) is samba.SambaParameter
        assert weight.sn_name == "net__head__weight"


def test_initialisation_functions_work_after_conversion():
    model = samba.from_torch_model_(Net())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            parameter.data.fill_(0.5)
    assert model.head.bias.tolist() == [0.5, 0.5]
    assert model.head.weight.sn_name == "net__head__weight"
    assert model.head.weight.requires_grad


def test_samba_parameter():
    source = torch.ones(2, 3)
    parameter = samba.SambaParameter(source, False, name="w", region_name="r", batch_dim=0)
    assert isinstance(parameter, nn.Parameter)
    assert (parameter.requires_grad, parameter.is_leaf) == (False, True)
    assert (parameter.sn_name, parameter.sn_region_name, parameter.batch_dim) == ("w", "r", 0)
    assert parameter.data_ptr() == source.data_ptr()
    layer = nn.Linear(3, 2)
    layer.weight = parameter
    assert dict(layer.named_parameters())["weight"] is parameter
    assert samba.nn.parameter.SambaParameter is samba.nn.SambaParameter is samba.SambaParameter
    assert samba.SambaParameter(samba.randn(2) * torch.ones(2, requires_grad=True)).is_leaf


def test_naming():
    assert join_name("net", "") == "net"
    assert join_name("net", "a.b") == "net__a__b"
