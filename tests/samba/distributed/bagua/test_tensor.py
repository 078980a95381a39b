"""Every row of the table of BaguaTensor's methods."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import samba
from emulator.replicas.comm import DataParallelError
from samba.distributed import bagua
from samba.errors import ArgumentError
from samba.tensor.bagua import BaguaTensor
from tests.api.covers import covers
from tests.samba.distributed.bagua.ranks import on_ranks
from tests.warm import forked


def samba_parameter() -> nn.Parameter:
    """A parameter of a model that was converted for the device."""
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data = torch.arange(6.0).view(2, 3)
    return samba.from_torch_model_(layer).weight


KINDS = {
    "tensor": lambda: torch.arange(6.0).view(2, 3),
    "parameter": lambda: nn.Parameter(torch.arange(6.0).view(2, 3)),
    "sambatensor": lambda: samba.SambaTensor(torch.arange(6.0).view(2, 3), name="s"),
    "sambaparameter": samba_parameter,
}


@pytest.fixture(params=KINDS)
def tensor(request):
    return KINDS[request.param]()


@pytest.fixture(params=["parameter", "sambaparameter"])
def parameter(request):
    return KINDS[request.param]()


def grad_getter(p):
    return p.grad


def grad_setter(p, t):
    p.grad = t


@covers("bagua.BaguaTensor.is_bagua_tensor", ".ensure_bagua_tensor")
def test_is_bagua_tensor(tensor):
    assert not bagua.is_bagua_tensor(tensor)
    assert bagua.ensure_bagua_tensor(tensor, "t") is tensor
    assert bagua.is_bagua_tensor(tensor)


@covers("bagua.BaguaTensor.ensure_bagua_tensor(getter_closure)")
def test_the_same_closures_change_nothing(tensor):
    def getter(t):
        return t

    bagua.ensure_bagua_tensor(tensor, "t", "m", getter)
    handle = bagua.bagua_backend_tensor(tensor)
    bagua.ensure_bagua_tensor(tensor, "t", "m", getter)
    assert bagua.bagua_backend_tensor(tensor) is handle
    bagua.ensure_bagua_tensor(tensor, "t", "m", lambda t: t)
    assert bagua.bagua_backend_tensor(tensor) is not handle


def test_a_tensor_goes_over_to_the_ranks_of_today(tensor):
    def registered(world):
        bagua.ensure_bagua_tensor(tensor, "t", "m")
        return bagua.bagua_backend_tensor(tensor).backend is world.backend("m")

    assert on_ranks(1, registered) == on_ranks(1, registered) == [True]


@covers("bagua.BaguaTensor.ensure_bagua_tensor(name)")
def test_without_a_name_the_name_stays(tensor):
    bagua.ensure_bagua_tensor(tensor, "t", "m")
    bagua.ensure_bagua_tensor(tensor, getter_closure=lambda t: t)
    handle = bagua.bagua_backend_tensor(tensor)
    assert (handle.name, handle.module_name) == ("t", "m")


@covers("bagua.BaguaTensor.ensure_bagua_tensor(name, module_name)")
@pytest.mark.parametrize(("name", "module"), [("u", "m"), ("t", "n"), ("t", None)])
def test_another_name_or_module_is_refused(tensor, name, module):
    bagua.ensure_bagua_tensor(tensor, "t", "m")
    with pytest.raises(ArgumentError, match="which it has already") as caught:
        bagua.ensure_bagua_tensor(tensor, name, module)
    assert repr(name) in caught.value.found
    assert repr(module) in caught.value.found


@covers("bagua.BaguaTensor.ensure_bagua_tensor(setter_closure)")
def test_a_setter_without_a_getter_is_beside_the_identity(tensor):
    seen = []
    bagua.ensure_bagua_tensor(tensor, "t", setter_closure=lambda t, v: seen.append((t, v)))
    assert bagua.bagua_getter_closure(tensor) is tensor
    other = torch.ones(2, 3)
    bagua.bagua_setter_closure(tensor, other)
    ((proxy, value),) = seen
    assert proxy is tensor and value is other


@covers("bagua.BaguaTensor.to_bagua_tensor")
def test_to_bagua_tensor_shares_storage_until_the_original_moves(tensor):
    made = bagua.to_bagua_tensor(tensor, "t")
    assert made is not tensor
    assert bagua.is_bagua_tensor(made)
    assert not bagua.is_bagua_tensor(tensor)
    assert made.data_ptr() == tensor.data_ptr()
    with torch.no_grad():
        tensor.set_(torch.zeros(6).untyped_storage(), 0, (2, 3))
    assert made.data_ptr() != tensor.data_ptr()
    assert made.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_to_bagua_tensor_of_a_parameter_is_no_parameter():
    made = bagua.to_bagua_tensor(KINDS["parameter"](), "t")
    with pytest.raises(NotImplementedError, match="is not a parameter"):
        bagua.bagua_ensure_grad(made)


@covers("bagua.BaguaTensor.bagua_getter_closure")
def test_getter_is_called_each_time(tensor):
    now = [torch.zeros(2)]
    bagua.ensure_bagua_tensor(tensor, "t", getter_closure=lambda t: now[0])
    backend = bagua.bagua_backend_tensor(tensor)
    assert bagua.bagua_getter_closure(tensor) is now[0]
    now[0] = torch.zeros(5, dtype=torch.bfloat16)
    assert bagua.bagua_getter_closure(tensor) is now[0]
    assert backend.data_ptr() == now[0].data_ptr()
    assert (backend.num_elements(), backend.dtype()) == (5, "bf16")


@covers("bagua.BaguaTensor.ensure_bagua_tensor(getter_closure)")
def test_the_gradient_that_a_getter_gives_is_used_when_there_is_one(parameter):
    p = bagua.ensure_bagua_tensor(parameter, "p", getter_closure=grad_getter)
    assert bagua.is_bagua_tensor(p)
    with pytest.raises(ArgumentError, match=r"closure of Bagua tensor 'p'.*bagua_ensure_grad"):
        bagua.bagua_getter_closure(p)
    (p * 2).sum().backward()
    assert torch.equal(bagua.bagua_getter_closure(p), torch.full((2, 3), 2.0))
    assert bagua.bagua_backend_tensor(p).data_ptr() == p.grad.data_ptr()
    p.grad = None
    p.grad = torch.ones(2, 3)
    assert torch.equal(bagua.bagua_getter_closure(p), torch.ones(2, 3))


@covers("bagua.BaguaTensor.bagua_setter_closure")
def test_setter(parameter):
    p = bagua.bagua_ensure_grad(parameter)
    bagua.ensure_bagua_tensor(p, "p", getter_closure=grad_getter)
    before = p.grad
    bagua.bagua_setter_closure(p, torch.ones(2, 3))  # None is a no-op
    assert p.grad is before and not before.any()
    bagua.ensure_bagua_tensor(p, "p", getter_closure=grad_getter, setter_closure=grad_setter)
    new = torch.ones(2, 3)
    bagua.bagua_setter_closure(p, new)
    assert p.grad is new
    assert bagua.bagua_getter_closure(p) is new
    bagua.bagua_setter_closure(p, tensor=before)
    assert p.grad is before


@covers("bagua.BaguaTensor.bagua_backend_tensor")
def test_backend_tensor(tensor):
    bagua.ensure_bagua_tensor(tensor, "t")
    backend = bagua.bagua_backend_tensor(tensor)
    assert backend.name == "t"
    assert backend.data_ptr() == tensor.data_ptr()
    assert backend.num_elements() == backend.num_elements_allocated() == 6
    assert (backend.dtype(), backend.device_id()) == ("f32", 0)
    assert backend.to_numpy_f32().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ArgumentError, match="uint8"):
        backend.to_numpy_u8()
    compressed = backend.compress("MinMaxUInt8", 2)
    other = bagua.ensure_bagua_tensor(torch.zeros(2, 3), "o")
    bagua.bagua_backend_tensor(other).decompress_from("MinMaxUInt8", 2, compressed)
    # Half a code of each chunk's range of 2, and the last bit of numbers below 8.
    torch.testing.assert_close(other.flatten(), torch.arange(6.0), atol=1 / 255 + 2**-21, rtol=0)
    first = backend.compress("MinMaxUInt8", 2, 0)
    assert compressed.data[: first.data.numel()].equal(first.data)


def test_allocated_elements_count_the_storage():
    part = bagua.ensure_bagua_tensor(torch.zeros(10)[2:5], "part")
    backend = bagua.bagua_backend_tensor(part)
    assert (backend.num_elements(), backend.num_elements_allocated()) == (3, 10)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "f32"),
        (torch.float16, "f16"),
        (torch.bfloat16, "bf16"),
        (torch.uint8, "u8"),
        (torch.int64, "i64"),
    ],
)
def test_types(dtype, name):
    t = bagua.ensure_bagua_tensor(torch.zeros(2, dtype=dtype), "t")
    assert bagua.bagua_backend_tensor(t).dtype() == name


def test_a_type_that_cannot_be_communicated():
    with pytest.raises(ArgumentError, match="complex64"):
        bagua.ensure_bagua_tensor(torch.zeros(2, dtype=torch.complex64), "t")


@covers("bagua.BaguaTensor.bagua_ensure_grad")
def test_ensure_grad(parameter):
    p = parameter
    assert bagua.bagua_ensure_grad(p) is p
    first = p.grad
    assert first is not None
    assert not first.any()
    assert bagua.bagua_ensure_grad(p).grad is first
    t = torch.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError):
        bagua.bagua_ensure_grad(t)
    t.sum().backward()
    assert bagua.bagua_ensure_grad(t) is t


@covers(
    "bagua.BaguaTensor.bagua_mark_communication_ready",
    ".bagua_mark_communication_ready_without_synchronization",
)
@pytest.mark.parametrize(
    "mark",
    [
        bagua.bagua_mark_communication_ready,
        bagua.bagua_mark_communication_ready_without_synchronization,
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_mark_ready(mark, kind):
    def work(world):
        t = bagua.ensure_bagua_tensor(KINDS[kind](), "t", "m")
        t.data.fill_(world.rank)
        backend = bagua.get_backend("m")
        with pytest.raises(ArgumentError, match="without buckets"):
            mark(t)
        backend.register_ordered_buckets(
            [bagua.BaguaBucket([t], "b").append_centralized_synchronous_op()]
        )
        other = bagua.ensure_bagua_tensor(torch.zeros(1), "other", "m")
        with pytest.raises(DataParallelError, match="'other' is in no registered bucket"):
            mark(other)
        mark(t)
        assert backend.wait_pending_comm_ops() == 1
        return t.flatten().tolist()

    assert on_ranks(2, work) == [[0.5] * 6] * 2


def test_mark_ready_needs_a_module(tensor):
    bagua.ensure_bagua_tensor(tensor, "t")
    for mark in (
        bagua.bagua_mark_communication_ready,
        bagua.bagua_mark_communication_ready_without_synchronization,
    ):
        with pytest.raises(ArgumentError, match="without a module"):
            mark(tensor)


@covers("bagua.BaguaTensor.bagua_set_storage")
def test_set_storage_does_not_copy(tensor):
    bagua.ensure_bagua_tensor(tensor, "t")
    flat = torch.arange(100.0, 110.0)
    bagua.bagua_set_storage(tensor, flat.untyped_storage(), 3)
    assert tensor.shape == (2, 3)
    assert tensor.flatten().tolist() == [103, 104, 105, 106, 107, 108]
    assert tensor.data_ptr() == flat[3:].data_ptr()


@covers("bagua.BaguaTensor.bagua_set_storage")
@pytest.mark.parametrize("by_setter", [False, True])
def test_set_storage_keeps_strides(by_setter):
    """A tensor in channels-last order reads its numbers in that order, and says so."""
    held = [torch.arange(24.0).view(1, 3, 2, 4).to(memory_format=torch.channels_last)]
    wanted, form = held[0].clone(), held[0].stride()
    closures = (lambda _: held[0], lambda _, t: held.__setitem__(0, t)) if by_setter else ()
    tensor = torch.zeros(1) if by_setter else held[0]
    bagua.ensure_bagua_tensor(tensor, "t", None, *closures)
    flat = torch.cat([torch.zeros(5), wanted.permute(0, 2, 3, 1).flatten()])
    bagua.bagua_set_storage(tensor, flat.untyped_storage(), 5)
    assert held[0].stride() == form
    assert held[0].equal(wanted)


@covers("bagua.BaguaTensor.bagua_backend_tensor")
def test_a_backend_tensor_keeps_its_tensor():
    made = bagua.bagua_backend_tensor(bagua.ensure_bagua_tensor(torch.ones(3), "t", "held"))
    assert made.num_elements() == 3
    assert made.to_numpy_f32().tolist() == [1, 1, 1]
    tensor = bagua.find_bagua_tensor("t", "held")
    assert tensor is not None
    assert bagua.bagua_backend_tensor(tensor) is made
    bucket = bagua.BaguaBucket([tensor], "b")
    bucket.backend.register_ordered_buckets([bucket])
    bucket.backend.mark_communication_ready(made, None)
    assert bucket.backend.wait_pending_comm_ops() == 1
    del made, tensor, bucket
    bagua.get_backend("held").register_ordered_buckets([])
    assert bagua.find_bagua_tensor("t", "held") is None, "nobody holds it"


@covers("bagua.BaguaTensor.bagua_set_storage")
def test_set_storage_goes_through_the_setter(parameter):
    p = bagua.bagua_ensure_grad(parameter)
    old = p.grad
    bagua.ensure_bagua_tensor(p, "p", getter_closure=grad_getter, setter_closure=grad_setter)
    flat = torch.arange(10.0)
    bagua.bagua_set_storage(p, flat.untyped_storage(), 1)
    assert p.grad is not old
    assert p.grad is not None
    assert p.grad.data_ptr() == flat[1:].data_ptr()
    (p * 2).sum().backward()
    assert flat.tolist() == [0, 3, 4, 5, 6, 7, 8, 7, 8, 9]


def test_a_copy_is_no_bagua_tensor_and_the_registry_knows_the_original(tensor):
    bagua.ensure_bagua_tensor(tensor, "t", "m")
    assert not bagua.is_bagua_tensor(copy.deepcopy(tensor))
    assert bagua.find_bagua_tensor("t", "m") is tensor
    assert bagua.find_bagua_tensor("t") is None


def test_a_bagua_tensor_is_saved_as_before():
    t = bagua.ensure_bagua_tensor(torch.ones(2), "t", "m", lambda t: t)
    data = io.BytesIO()
    torch.save(t, data)
    data.seek(0)
    assert torch.load(data, weights_only=True).equal(t)


def test_other_tensors_are_refused(tensor):
    with pytest.raises(ArgumentError, match="not a Bagua tensor"):
        bagua.bagua_getter_closure(tensor)


@covers("bagua.BaguaTensor")
def test_sambatensors_have_the_methods():
    t = KINDS["sambatensor"]()
    assert t.ensure_bagua_tensor("t", "m") is t
    assert t.is_bagua_tensor()
    assert (t.bagua_tensor_name, t.bagua_module_name) == ("t", "m")
    assert t.bagua_getter_closure() is t
    assert isinstance(t.to_bagua_tensor("u"), samba.SambaTensor)


def test_methods_are_the_functions():
    """So what the tests above show of the functions holds for the methods."""
    names = [n for n in vars(BaguaTensor) if "bagua" in n]
    methods = [n for n in names if n not in ("bagua_tensor_name", "bagua_module_name")]
    assert len(methods) == 10
    bagua.enable_bagua_tensors()
    try:
        for name in methods:
            function = getattr(bagua, name)
            assert getattr(samba.SambaTensor, name) is function
            assert getattr(torch.Tensor, name) is function
            assert getattr(nn.Parameter, name) is function
    finally:
        bagua.disable_bagua_tensors()


def test_enabling_gives_torch_tensors_the_methods():
    t = torch.ones(2)
    assert not hasattr(t, "ensure_bagua_tensor")
    bagua.enable_bagua_tensors()
    try:
        assert t.ensure_bagua_tensor("t").is_bagua_tensor()
        assert nn.Parameter(t).bagua_ensure_grad().grad is not None
        assert t.bagua_tensor_name == "t"
    finally:
        bagua.disable_bagua_tensors()
    assert not hasattr(t, "ensure_bagua_tensor")


PATCHED = """
import torch
import sambaflow.samba.distributed.bagua as bagua
import sambaflow.samba.distributed.bagua.torch_api
assert not hasattr(torch.Tensor, "ensure_bagua_tensor")

from sambaflow.samba.distributed.bagua.torch_api.tensor import BaguaTensor
p = torch.nn.Parameter(torch.ones(2)).ensure_bagua_tensor(
    name="p", getter_closure=lambda p: p.grad, setter_closure=lambda p, t: setattr(p, "grad", t)
)
assert p.is_bagua_tensor() and p.bagua_tensor_name == "p"
assert p.bagua_ensure_grad() is p and p.bagua_getter_closure() is p.grad
new = torch.ones(2)
p.bagua_setter_closure(tensor=new)
assert p.grad is new
assert torch.Tensor.to_bagua_tensor is BaguaTensor.to_bagua_tensor is bagua.to_bagua_tensor
bagua.disable_bagua_tensors()
assert not hasattr(torch.Tensor, "ensure_bagua_tensor")
"""


@covers("bagua.BaguaTensor")
def test_importing_the_module_of_the_page_patches_torch_tensors():
    (ended,) = forked("", [PATCHED])
    assert ended.returncode == 0, ended.stderr


def test_importing_changes_no_class_of_torch():
    for name in dir(bagua):
        getattr(bagua, name)
    assert not [n for n in dir(torch.Tensor) if "bagua" in n]
