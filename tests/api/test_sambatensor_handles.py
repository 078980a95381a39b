"""A SambaTensor of a torch tensor is a handle to that tensor."""

from __future__ import annotations

import torch

import samba
from tests.api.covers import covers


@covers("samba.SambaTensor.torch", "samba.to_torch", "samba.SambaTensor.torch_tensor")
def test_the_original_tensor_comes_back():
    source = torch.ones(2)
    for tensor in (samba.SambaTensor(source), samba.from_torch_tensor(source, name="x")):
        assert tensor.torch() is source
        assert tensor.torch_tensor() is source
        assert samba.to_torch(tensor) is source


@covers("samba.SambaTensor.requires_grad", "samba.SambaTensor.requires_grad_")
def test_whether_gradients_are_needed_is_the_underlying_tensors():
    source = torch.ones(2)
    tensor = samba.SambaTensor(source)
    tensor.requires_grad_()
    assert source.requires_grad
    tensor.requires_grad = False
    assert not source.requires_grad
    assert samba.SambaTensor(torch.ones(2, requires_grad=True)).requires_grad


@covers("samba.SambaTensor.grad", "samba.SambaTensor.backward")
def test_the_gradient_is_the_underlying_tensors():
    source = torch.ones(3, requires_grad=True)
    tensor = samba.SambaTensor(source)
    (source * 2).sum().backward()
    assert torch.equal(tensor.grad, torch.full((3,), 2.0))
    (tensor * 5).sum().backward()
    assert torch.equal(source.grad, torch.full((3,), 7.0))
    tensor.grad = torch.zeros(3)
    assert not source.grad.any()
    tensor.grad = None
    assert source.grad is None


@covers("samba.SambaTensor.data")
def test_data_is_the_underlying_tensors():
    source = torch.ones(3)
    tensor = samba.SambaTensor(source)
    assert tensor.data.data_ptr() == source.data_ptr()
    tensor.data = torch.full((3,), 4.0)
    assert source.tolist() == [4, 4, 4]
    source.data = torch.zeros(3)
    assert tensor.data.tolist() == [0, 0, 0]
