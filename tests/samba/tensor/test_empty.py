"""Empty SambaTensors: a shape and a dtype without values, and the way to values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import samba
from samba.errors import ArgumentError, NoHostData
from samba.lazy_param import lazy_param
from tests.api.covers import covers


def empty(**arguments) -> samba.SambaTensor:
    return samba.SambaTensor(shape=(2, 3, 4), dtype=torch.bfloat16, name="e", **arguments)


def test_shape_queries_work_and_memory_is_tiny():
    tensor = empty()
    assert not tensor.has_data
    assert len(tensor) == 2
    assert tensor.is_contiguous()
    assert not tensor.requires_grad
    assert samba.SambaTensor(shape=(10**6, 10**6)).numel() == 10**12
    assert samba.SambaTensor(shape=reversed((3, 2))).shape == (2, 3)
    assert samba.SambaTensor(shape=()).shape == ()
    assert samba.SambaTensor(shape=(0, 3)).stride() == (3, 1)


NEEDS_VALUES = {
    "add": lambda t: t + 1,
    "radd": lambda t: torch.ones(2, 3, 4) + t,
    "index": lambda t: t[0],
    "cat": lambda t: torch.cat([torch.ones(2, 3, 4), t]),
    "item": lambda t: t.sum().item(),
    "numpy": lambda t: t.numpy(),
    "values of data": lambda t: t.data.numpy(),
    "torch": lambda t: t.torch(),
    "to_torch": samba.to_torch,
    "reshape": lambda t: t.reshape(-1),
    "clone": lambda t: t.clone(),
    "in place": lambda t: t.zero_(),
    "keyword": lambda t: torch.add(input=torch.ones(2, 3, 4), other=t),
}


@pytest.mark.parametrize("use", NEEDS_VALUES.values(), ids=NEEDS_VALUES)
def test_operations_on_values_are_refused(use):
    with pytest.raises(NoHostData, match=r"SambaTensor e of shape \(2, 3, 4\) holds a shape"):
        use(empty())


def ones(tensor: samba.SambaTensor) -> torch.Tensor:
    return torch.ones(tensor.shape)


def test_data_of_a_tensor_without_values_is_another_without_values():
    """Whatever makes its values, and whether anything does."""
    with lazy_param():
        lazy = torch.nn.Linear(2, 2).weight
    meta = samba.from_torch_model_(torch.nn.Linear(2, 2, device="meta")).weight
    made = samba.SambaParameter(shape=(2, 2), materializer=ones)
    for tensor in (lazy, meta, made, samba.SambaTensor(shape=(2, 2), name="e")):
        data = tensor.data
        assert type(data) is samba.SambaTensor
        assert (data.has_data, data.shape, data.dtype) == (False, (2, 2), torch.float32)
        assert data.materializer_provided is tensor.materializer_provided
    assert made.data.torch_tensor().tolist() == [[1, 1], [1, 1]]
    meta.data.copy_(torch.full((2, 2), 3.0))
    assert meta.tolist() == [[3, 3], [3, 3]]
    made.materialize_()
    assert type(made.data) is torch.Tensor


def test_tensors_of_the_same_shape_can_be_made():
    made = torch.ones_like(empty())
    assert made.has_data
    assert made.shape == (2, 3, 4)
    assert samba.randn_like(empty()).dtype == torch.bfloat16
    assert empty().new_zeros((2,)).tolist() == [0, 0]


def test_what_a_materializer_makes_becomes_of_the_dtype_that_was_asked_for():
    tensor = empty(materializer=lambda tensor, value=3.0: torch.full(tensor.shape, value))
    assert tensor.torch_tensor().dtype == torch.bfloat16
    tensor.materialize_()
    assert (tensor.dtype, tensor.sn_name) == (torch.bfloat16, "e")
    assert (tensor + 0).float().sum() == 72


def test_a_materializer_can_take_random_numbers():
    tensor = empty(materializer=lambda t, rng: torch.randn(t.shape, generator=rng))
    torch.manual_seed(1)
    first = tensor.torch_tensor()
    torch.manual_seed(1)
    assert torch.equal(first, tensor.torch_tensor())
    assert not torch.equal(first, tensor.torch_tensor())


def test_materializing_can_fail():
    with pytest.raises(NoHostData, match="needs a materializer"):
        empty().materialize_()
    with pytest.raises(NoHostData, match="torch_tensor"):
        empty().torch_tensor()
    with pytest.raises(ArgumentError, match=r"found a tensor of shape \(2,\)"):
        empty(materializer=lambda t: torch.ones(2)).materialize_()
    with pytest.raises(ArgumentError, match="found NoneType"):
        empty(materializer=lambda t: None).materialize_()


def test_clear_data_frees_the_host_memory():
    source = torch.ones(1000)
    tensor = samba.from_torch_tensor(source, name="x")
    tensor.clear_data()
    assert not tensor.has_data
    assert (tensor.shape, tensor.dtype, tensor.sn_name) == ((1000,), torch.float32, "x")
    assert source.sum() == 1000
    with pytest.raises(NoHostData):
        tensor.sum()
    tensor.data = source
    assert tensor.sum() == 1000


def test_a_model_of_empty_parameters_is_cast_and_filled():
    model = torch.nn.Linear(3, 2, device="meta")
    samba.from_torch_model_(model)
    assert type(model.weight) is samba.SambaParameter
    assert not model.weight.has_data
    weight = model.weight
    model.bfloat16()
    assert model.weight is weight
    assert (weight.dtype, weight.has_data, weight.sn_name) == (
        torch.bfloat16,
        False,
        "linear__weight",
    )
    with pytest.raises(NoHostData):
        model(torch.ones(1, 3))
    model.float()
    for parameter in model.parameters():
        parameter.materializer = lambda p: torch.ones(p.shape)
        parameter.materialize_()
    assert model(torch.ones(1, 3)).tolist() == [[4, 4]]
    assert weight.requires_grad


def test_an_empty_tensor_can_carry_a_gradient_flag():
    tensor = empty().requires_grad_()
    assert tensor.requires_grad
    assert tensor.float().requires_grad
    assert not tensor.detach().requires_grad
    assert samba.SambaParameter(shape=(2,), requires_grad=False).requires_grad is False


# -- what is computed while parameters are made lazily ---------------------------------


@covers("samba.session.use_static_functional")
def test_what_is_computed_from_lazy_parameters_is_symbolic_until_it_is_needed():
    """``use_static_functional()`` holds: shapes and dtypes without values, then torch's values."""
    with lazy_param():
        assert samba.session.use_static_functional()
        layer = nn.Linear(4, 3)
        scale = layer.weight.abs().mean(1, dtype=torch.float64)
        first, second = torch.stack([layer.weight, layer.weight * 2]).unbind(0)
        noise = torch.bernoulli(layer.weight.sigmoid())
        nn.init.zeros_(layer.bias)
        layer.weight.mul_(3)  # later than what was computed
        deep = layer.weight
        for _ in range(40):
            deep = deep + deep * 0.5  # each once, not 2 ** 40 times
        assert isinstance(layer.weight.sum().item(), float)
        for result in (scale, first, second, noise, deep):
            assert isinstance(result, samba.SambaTensor) and not result.has_data
        assert (scale.shape, scale.dtype) == ((3,), torch.float64)
    weight = layer.weight.torch_tensor() / 3
    assert torch.equal(noise.torch_tensor(), noise.torch_tensor())
    close = torch.testing.assert_close
    close(scale.torch_tensor(), weight.abs().mean(1, dtype=torch.float64))
    close(first.torch_tensor(), weight)
    close(second.torch_tensor(), weight * 2)
    close(deep.torch_tensor(), weight * 3 * 1.5**40)
    scale.materialize_()
    assert scale.has_data and scale.torch().dtype == torch.float64


def test_what_shares_memory_or_has_a_gradient_is_computed_while_parameters_are_made_lazily():
    with lazy_param():
        tensor = samba.zeros(2, 3)
        tensor.view(-1)[0] = 1
        tensor.t()[1, 0] = 2
        assert tensor.contiguous() is tensor
        weight = samba.ones(3, requires_grad=True)
        (weight * 2).sum().backward()
        later = tensor + 1
        tensor.zero_()
        assert not later.has_data and float(later.sum()) == 9
    assert weight.grad.tolist() == [2, 2, 2]
    assert later.torch_tensor().tolist() == [[2, 3, 1], [1, 1, 1]]
