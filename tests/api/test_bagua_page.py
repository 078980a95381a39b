"""The page of BaguaTensor: arguments by their names, getter and setter closures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samba.distributed import bagua
from tests.api.covers import covers


@covers(
    "bagua.BaguaTensor.to_bagua_tensor(name, module_name, getter_closure, setter_closure)",
    ".ensure_bagua_tensor(name, module_name, getter_closure, setter_closure)",
    ".bagua_setter_closure(tensor)",
)
def test_names_and_closures_of_a_tensor():
    for make in (bagua.to_bagua_tensor, bagua.ensure_bagua_tensor):
        source, effective = torch.zeros(3), {"now": torch.ones(2)}
        made = make(
            source,
            name="weight",
            module_name=f"net_{make.__name__}",
            getter_closure=lambda proxy, effective=effective: effective["now"],
            setter_closure=lambda proxy, new, effective=effective: effective.update(now=new),
        )
        assert (made is source) is (make is bagua.ensure_bagua_tensor)
        assert made.data_ptr() == source.data_ptr()
        backend = bagua.bagua_backend_tensor(made)
        assert (backend.name, backend.module_name) == ("weight", f"net_{make.__name__}")
        assert bagua.bagua_getter_closure(made) is effective["now"]
        assert backend.num_elements() == 2
        new = torch.full((5,), 2.0)
        bagua.bagua_setter_closure(made, tensor=new)
        assert effective["now"] is new and bagua.bagua_getter_closure(made) is new


@covers("bagua.BaguaTensor.bagua_set_storage(storage, storage_offset)")
def test_the_effective_tensor_gets_a_storage_and_an_offset():
    weight = bagua.bagua_ensure_grad(nn.Parameter(torch.zeros(3)))
    grad = weight.grad
    bagua.ensure_bagua_tensor(weight, "w", getter_closure=lambda p: p.grad)
    flat = torch.arange(10.0)
    for arguments, first in (({}, 0), ({"storage_offset": 4}, 4)):
        bagua.bagua_set_storage(weight, storage=flat.untyped_storage(), **arguments)
        effective = bagua.bagua_getter_closure(weight)
        assert effective.tolist() == [first, first + 1, first + 2]
        assert effective.data_ptr() == flat[first:].data_ptr()
    assert weight.grad is grad  # without a setter the tensor itself is moved
    assert not weight.any()


# -- closures --------------------------------------------------------------------------


@covers(
    "bagua.BaguaTensor.bagua_setter_closure",
    ".ensure_bagua_tensor(setter_closure)",
    ".to_bagua_tensor(setter_closure)",
)
@pytest.mark.parametrize("make", [bagua.ensure_bagua_tensor, bagua.to_bagua_tensor])
def test_no_setter_is_a_no_op(make):
    tensor = make(torch.zeros(3), "t", setter_closure=None)
    assert bagua.bagua_setter_closure(tensor, torch.ones(3)) is None
    assert bagua.bagua_getter_closure(tensor) is tensor and not tensor.any()


@covers(
    "bagua.BaguaTensor.bagua_getter_closure",
    ".ensure_bagua_tensor(getter_closure)",
    ".to_bagua_tensor(getter_closure)",
)
@pytest.mark.parametrize("make", [bagua.ensure_bagua_tensor, bagua.to_bagua_tensor])
def test_no_getter_is_the_identity_also_beside_a_setter(make):
    tensor = make(torch.zeros(3), "t", setter_closure=lambda t, new: t.data.copy_(new))
    assert bagua.bagua_getter_closure(tensor) is tensor
    bagua.bagua_setter_closure(tensor, torch.ones(3))
    assert bagua.bagua_getter_closure(tensor).tolist() == [1, 1, 1]
