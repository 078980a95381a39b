"""SambaTensor as a torch tensor: memory, names, autograd, casts, pickles, printing."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import samba
from samba.errors import ArgumentError, ConversionError, NoAutograd
from tests.api.covers import covers


def image(**labels) -> samba.SambaTensor:
    return samba.SambaTensor(torch.arange(6.0).reshape(2, 3), name="image", **labels)


@pytest.mark.parametrize("wrong", [[1.0, 2.0], np.ones(2), 3])
def test_conversion_refuses_what_is_no_tensor(wrong):
    with pytest.raises(ConversionError, match=r"found .*expected a torch.Tensor"):
        samba.from_torch_tensor(wrong)
    with pytest.raises(ConversionError, match=r"expected a SambaTensor or a torch\.Tensor"):
        samba.to_torch(wrong)


def test_there_is_no_tensor_of_nothing():
    with pytest.raises(ArgumentError, match="torch_tensor, or shape"):
        samba.SambaTensor()


def test_dimension_labels():
    tensor = image()
    assert tensor.named_dims == (None, None)
    tensor.named_dims = ["B", "F"]
    assert tensor.named_dims == ("B", "F")
    with pytest.raises(ArgumentError, match="3 labels"):
        tensor.sized_dims = ("a", "b", "c")


CASTS = {
    "bfloat16": lambda t: t.bfloat16(),
    "half": lambda t: t.half(),
    "double": lambda t: t.double(),
    "int": lambda t: t.int(),
    "long": lambda t: t.long(),
    "short": lambda t: t.short(),
    "bool": lambda t: t.bool(),
    "to dtype": lambda t: t.to(torch.bfloat16),
    "to other": lambda t: t.to(torch.ones((), dtype=torch.float64)),
    "type": lambda t: t.type(torch.int16),
    "type_as": lambda t: t.type_as(torch.ones((), dtype=torch.int8)),
    "detach": lambda t: t.detach(),
    "bf16 and back": lambda t: t.bfloat16().float(),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("empty", [False, True])
def test_casts_keep_names_and_labels(cast, empty):
    tensor = image(batch_dim=0, named_dims=("B", "F"), region_name="pool")
    if empty:
        tensor.clear_data()
    result = cast(tensor)
    assert isinstance(result, samba.SambaTensor)
    assert result.dtype == cast(torch.ones(2, 3)).dtype
    assert result.shape == (2, 3)
    assert (result.sn_name, result.sn_region_name) == ("image", "pool")
    assert (result.batch_dim, result.named_dims) == (0, ("B", "F"))
    assert result.has_data is not empty
    if not empty:
        assert torch.equal(result.torch(), cast(torch.arange(6.0).reshape(2, 3)))


def test_a_cast_to_the_present_dtype_is_the_tensor_itself():
    tensor = image()
    assert tensor.float() is tensor
    tensor.clear_data()
    assert tensor.float() is tensor


def test_results_are_samba_tensors_without_names():
    tensor = image()
    for result in (tensor + 1, 1 - tensor, torch.relu(tensor), tensor.reshape(3, 2), tensor[0]):
        assert type(result) is samba.SambaTensor
        assert result.sn_name == ""
    assert all(type(part) is samba.SambaTensor for part in tensor.split(1))
    values, indices = tensor.max(dim=1)
    assert type(values) is type(indices) is samba.SambaTensor
    assert type(torch.cat([tensor, torch.ones(1, 3)])) is samba.SambaTensor
    assert tensor.item() if tensor.numel() == 1 else True
    assert isinstance(tensor.tolist(), list)
    assert tensor.T.shape == (3, 2)


def test_plain_tensors_that_were_passed_in_stay_plain():
    plain = torch.zeros(2, 3)
    same = plain.add_(image())
    assert same is plain
    assert type(plain) is torch.Tensor
    out = torch.empty(2, 3)
    torch.add(image(), 1, out=out)
    assert type(out) is torch.Tensor
    assert torch.atleast_2d([plain, image()])[0] is plain
    assert type(plain) is torch.Tensor


def test_equality_is_elementwise_and_hash_by_identity():
    tensor, plain = image(), torch.arange(6.0).reshape(2, 3)
    assert (tensor == plain).all()
    assert (plain == tensor).all()
    assert (plain != tensor).sum() == 0
    assert {tensor: 1}[tensor] == 1
    assert image() not in {tensor: 1}


def test_data_and_grad_are_plain():
    tensor = image()
    tensor.requires_grad_()
    (tensor**2).sum().backward()
    assert type(tensor.data) is type(tensor.grad) is torch.Tensor
    assert not tensor.data.requires_grad
    assert torch.equal(tensor.grad, 2 * tensor.data)
    tensor.grad = samba.ones(2, 3)
    assert type(tensor.grad) is torch.Tensor
    tensor.grad = None
    assert tensor.grad is None
    (tensor * 1).backward(gradient=samba.ones(2, 3))
    assert type(tensor.grad) is torch.Tensor
    del tensor.grad
    assert tensor.grad is None


def test_data_can_be_replaced():
    tensor = image()
    new = torch.ones(2, 3, dtype=torch.bfloat16)
    tensor.data = new
    assert tensor.dtype == torch.bfloat16
    assert tensor.data_ptr() == new.data_ptr()
    tensor.data = samba.zeros(4)
    assert tensor.tolist() == [0, 0, 0, 0]
    assert tensor.sn_name == "image"


def test_autograd_reaches_through_conversions():
    leaf = torch.ones(3, requires_grad=True)
    middle = samba.from_torch_tensor(leaf * 2, name="middle")
    samba.to_torch(middle).sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]
    own = samba.from_torch_tensor(leaf, name="leaf")
    assert own.is_leaf
    assert own.requires_grad


@covers(
    "samba.SambaTensor.torch",
    ".torch_tensor",
    ".requires_grad",
    ".requires_grad_",
    ".grad",
    ".data",
    "samba.to_torch",
)
@pytest.mark.parametrize("make", [samba.SambaTensor, samba.from_torch_tensor])
def test_a_samba_tensor_is_a_handle_to_the_tensor_that_it_was_made_from(make):
    source = torch.arange(3.0)
    tensor = make(source, name="x")
    assert tensor.torch() is tensor.torch_tensor() is samba.to_torch(tensor) is source
    tensor.requires_grad = True
    assert source.requires_grad
    source.requires_grad_(False)
    assert not tensor.requires_grad
    assert tensor.requires_grad_() is tensor
    (tensor**2).sum().backward()
    assert tensor.grad is source.grad
    assert source.grad.tolist() == [0, 2, 4]
    tensor.grad = torch.ones(3)
    assert source.grad.tolist() == [1, 1, 1]
    torch.optim.SGD([tensor], lr=1.0).step()
    assert source.tolist() == [-1, 0, 1]
    del tensor.grad
    assert source.grad is None
    tensor.data = torch.full((2,), 7.0)
    assert source.tolist() == tensor.tolist() == [7, 7]
    assert source.data_ptr() == tensor.data_ptr() == tensor.data.data_ptr()
    source.data = torch.ones(1, 4)
    assert tensor.shape == (1, 4)
    assert tensor.data.data_ptr() == source.data_ptr()
    assert np.array_equal(tensor.detach().numpy(), source.detach().numpy())
    assert tensor.sn_name == "x"


def test_gradients_are_asked_of_either():
    source = torch.arange(3.0, requires_grad=True)
    tensor = samba.SambaTensor(source)
    for asked in (source, tensor):
        (found,) = torch.autograd.grad((tensor * source).sum(), asked)
        assert found.tolist() == [0, 2, 4]
    loss = (tensor * source).sum()
    loss.backward(inputs=[tensor])
    assert source.grad.tolist() == tensor.grad.tolist() == [0, 2, 4]
    seen = []
    tensor.register_hook(lambda grad: seen.append(grad.tolist()))
    (source * 3).sum().backward()
    assert seen == [[3, 3, 3]]


def test_in_place_functions_change_the_tensor_and_return_the_handle():
    source = torch.arange(6.0)
    tensor = samba.SambaTensor(source, name="x")
    assert tensor.mul_(2) is tensor
    assert tensor.unsqueeze_(0) is tensor and tensor.sn_name == "x"
    assert tensor.shape == source.shape == (1, 6)
    assert torch.add(tensor, 1, out=tensor) is tensor
    tensor[0, 1] = -1
    tensor += 1
    assert source.tolist() == tensor.tolist() == [[2, 0, 6, 8, 10, 12]]
    assert tensor.float() is tensor.contiguous() is tensor
    assert source._version == tensor._version


def test_a_handle_of_a_handle_is_one_of_the_same_tensor():
    parameter = torch.nn.Parameter(torch.ones(2))
    tensor = samba.SambaTensor(samba.SambaTensor(parameter, name="a"), name="b")
    assert tensor.torch() is parameter
    (tensor * 2).sum().backward()
    assert parameter.grad.tolist() == [2, 2]
    converted = samba.SambaParameter(torch.ones(2), name="w")
    (samba.SambaTensor(converted, name="v") * 2).sum().backward()
    assert converted.grad.tolist() == [2, 2]


def test_copies_are_handles_of_copies():
    source = torch.ones(2, requires_grad=True)
    tensor = samba.SambaTensor(source, name="x")
    copied, same = copy.deepcopy([tensor, source])
    assert copied.torch() is same is not source
    assert copied.sn_name == "x" and copied.requires_grad
    tensor.clear_data()
    assert source.tolist() == [1, 1] and not tensor.has_data


def test_results_add_nothing_to_the_autograd_graph():
    weight = image().requires_grad_()
    loss = torch.nn.functional.mse_loss(weight, torch.zeros(2, 3))
    assert "MseLoss" in loss.grad_fn.name()
    assert not (weight * 2)._is_view()


def test_output_protocol_of_scripts():
    pred = samba.from_torch_tensor(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))
    label = samba.from_torch_tensor(torch.tensor([1, 1]))
    _, predicted = torch.max(pred.data, 1)
    assert (predicted == label).sum().item() == 1
    assert (label == predicted).float().mean().item() == 0.5
    assert f"{pred.mean():.4f}" == "0.5000"
    assert f"{pred.mean()}" == f"{pred.mean().item()}"
    assert "{:.1f}".format(pred.sum()) == "2.0"  # noqa: UP032  # the form scripts use
    assert pred.size(0) == len(pred) == 2
    assert pred.numpy().shape == (2, 2)


def test_arrays_share_the_memory():
    tensor = image()
    assert isinstance(tensor.numpy(), np.ndarray)
    assert np.shares_memory(np.asarray(tensor), tensor.numpy())


def test_repr_shows_values_and_description():
    text = repr(samba.SambaTensor(torch.tensor(1.2188), name="loss"))
    assert text == (
        "tensor(1.2188)\n"
        "samba.SambaTensor(name: loss, shape: torch.Size([]), dtype: torch.float32,\n"
        "batch_dim: None, named_dims: (), keep_data: True, materializer_provided: False)"
    )
    empty = samba.SambaTensor(shape=(2, 3), dtype=torch.bfloat16, materializer=torch.ones_like)
    assert repr(empty) == (
        "tensor(..., size=(2, 3), dtype=torch.bfloat16)\n"
        "samba.SambaTensor(name: , shape: torch.Size([2, 3]), dtype: torch.bfloat16,\n"
        "batch_dim: None, named_dims: (None, None), keep_data: False, materializer_provided: True)"
    )
    assert str(image()) == repr(image())


def test_deepcopy_keeps_names_and_values_apart():
    tensor = image(batch_dim=0).requires_grad_()
    tensor.grad = torch.ones(2, 3)
    twin, other = copy.deepcopy((tensor, tensor))
    assert twin is other
    assert type(twin) is samba.SambaTensor
    assert (twin.sn_name, twin.batch_dim, twin.requires_grad) == ("image", 0, True)
    assert torch.equal(twin.data, tensor.data)
    assert twin.data_ptr() != tensor.data_ptr()
    twin.grad.zero_()
    assert tensor.grad.sum() == 6
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(tensor * 2)
    empty = copy.deepcopy(samba.SambaTensor(shape=(2,), materializer=lambda t: torch.ones(2)))
    assert not empty.has_data
    empty.materialize_()
    assert empty.tolist() == [1, 1]


def test_tensors_are_saved_as_plain_ones():
    file = io.BytesIO()
    torch.save({"x": image(), "y": image().bfloat16()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded["x"]) is torch.Tensor
    assert torch.equal(loaded["x"], image().torch())
    assert loaded["y"].dtype == torch.bfloat16


@pytest.mark.parametrize("module", ["pickle.dumps", "pickle._dumps"])
def test_a_pickle_keeps_the_names(module):
    """In C and in Python."""
    dumps = {"pickle.dumps": pickle.dumps, "pickle._dumps": pickle._dumps}[module]
    source = torch.arange(3.0)
    tensor = samba.SambaTensor(source, name="x", region_name="r", batch_dim=0, named_dims=("B",))
    tensor.mem_type = "HBM"
    tensor.materializer = lambda t: torch.zeros(3)
    again = pickle.loads(dumps({"x": [tensor]}))["x"][0]  # noqa: S301  # our own bytes
    assert type(again) is samba.SambaTensor
    assert (again.sn_name, again.sn_region_name, again.batch_dim) == ("x", "r", 0)
    assert (again.named_dims, again.mem_type) == (("B",), "HBM")
    assert again.has_data
    assert again.tolist() == [0, 1, 2]
    again.zero_()
    assert source.tolist() == [0, 1, 2]


def test_pickle_of_parameters_and_empty_tensors_keeps_everything():
    weight = samba.SambaParameter(torch.ones(2), requires_grad=False, name="w", region_name="r")
    again = pickle.loads(pickle.dumps(weight))  # noqa: S301  # our own bytes
    assert type(again) is samba.SambaParameter
    assert (again.sn_name, again.sn_region_name) == ("w", "r")
    assert not again.requires_grad
    assert again.tolist() == [1, 1]
    empty = samba.SambaTensor(shape=(4, 5), dtype=torch.int16, name="ids")
    again = pickle.loads(pickle.dumps(empty))  # noqa: S301  # our own bytes
    assert (again.sn_name, again.shape, again.dtype) == ("ids", (4, 5), torch.int16)
    assert not again.has_data


def test_recorded_wishes():
    tensor = image()
    assert (tensor.host_memory, tensor.mem_type) == (None, None)
    tensor.host_memory = True
    tensor.mem_type = "DDR"
    (tensor + 1).host_memory = False
    assert (tensor.host_memory, tensor.mem_type) == (True, "DDR")
    assert tensor.bfloat16().mem_type == "DDR"


def test_sambatensor_exports():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x).relu()

    model = samba.from_torch_model_(Net())
    program = torch.export.export(model, (samba.randn(4, 3, name="x"),), strict=False)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets == ["aten.linear.default", "aten.relu.default"]


def test_backward_of_what_no_graph_knows_is_refused_as_in_torch():
    loss = samba.from_torch_tensor(torch.ones(()), name="net__loss")
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    with pytest.raises(NoAutograd, match=r"net__loss.*does not require grad.*parameter.sn_grad"):
        loss.backward()
    with pytest.raises(NoAutograd, match="unnamed"):
        samba.from_torch_tensor(torch.ones(())).backward()
