"""Getter and setter closures as the page of BaguaTensor describes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samba.distributed import bagua
from tests.api.covers import covers


@covers(
    "bagua.BaguaTensor.bagua_setter_closure",
    "bagua.BaguaTensor.ensure_bagua_tensor(setter_closure)",
    "bagua.BaguaTensor.to_bagua_tensor(setter_closure)",
)
@pytest.mark.parametrize("make", [bagua.ensure_bagua_tensor, bagua.to_bagua_tensor])
def test_no_setter_is_a_no_op(make):
    tensor = make(torch.zeros(3), "t", setter_closure=None)
    assert bagua.bagua_setter_closure(tensor, torch.ones(3)) is None
    assert bagua.bagua_getter_closure(tensor) is tensor and not tensor.any()


@covers(
    "bagua.BaguaTensor.bagua_getter_closure",
    "bagua.BaguaTensor.ensure_bagua_tensor(getter_closure)",
    "bagua.BaguaTensor.to_bagua_tensor(getter_closure)",
)
@pytest.mark.parametrize("make", [bagua.ensure_bagua_tensor, bagua.to_bagua_tensor])
def test_no_getter_is_the_identity_also_beside_a_setter(make):
    tensor = make(torch.zeros(3), "t", setter_closure=lambda t, new: t.data.copy_(new))
    assert bagua.bagua_getter_closure(tensor) is tensor
    bagua.bagua_setter_closure(tensor, torch.ones(3))
    assert bagua.bagua_getter_closure(tensor).tolist() == [1, 1, 1]


@covers("bagua.BaguaTensor.ensure_bagua_tensor(getter_closure)")
def test_the_getter_is_used_at_run_time():
    """``lambda x: x.grad`` may be registered before there is a gradient."""
    weight = nn.Parameter(torch.ones(3))
    bagua.ensure_bagua_tensor(weight, "w", getter_closure=lambda p: p.grad)
    (weight * 2).sum().backward()
    assert bagua.bagua_getter_closure(weight) is weight.grad


@covers("bagua.BaguaTensor.bagua_setter_closure(tensor)")
def test_the_new_tensor_is_given_by_keyword():
    weight = bagua.bagua_ensure_grad(nn.Parameter(torch.ones(3)))
    bagua.ensure_bagua_tensor(
        weight,
        "w",
        getter_closure=lambda p: p.grad,
        setter_closure=lambda p, new: setattr(p, "grad", new),
    )
    new = torch.full((3,), 2.0)
    bagua.bagua_setter_closure(weight, tensor=new)
    assert weight.grad is new and bagua.bagua_getter_closure(weight) is new
