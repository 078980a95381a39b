"""Wrong types and values for the documented arguments of tensors: refused when given, by name."""

from __future__ import annotations

import pytest
import torch

import samba
from samba.errors import ArgumentError, SambaError
from samba.tensor.bagua import bagua_set_storage, bagua_setter_closure, ensure_bagua_tensor
from tests.api.covers import covers

Tensor = samba.SambaTensor


def made() -> samba.SambaTensor:
    return Tensor(torch.ones(2, 3), name="x")


def a_setter(attribute: str, value: object):
    return lambda: setattr(made(), attribute, value)


def of_three(shape, dtype, layout):
    return torch.zeros(shape, dtype=dtype, layout=layout)


WRONG = {
    "shape=3": (lambda: Tensor(shape=3), "SambaTensor(shape=...)", "sizes"),
    "shape negative": (lambda: Tensor(shape=(-1, 2)), "SambaTensor(shape=...)", "(-1, 2)"),
    "shape of floats": (lambda: Tensor(shape=(1.5,)), "SambaTensor(shape=...)", "1.5"),
    "shape of flags": (lambda: Tensor(shape=(True,)), "SambaTensor(shape=...)", "True"),
    "shape too large": (lambda: Tensor(shape=(1 << 40,) * 2), "SambaTensor(shape=...)", "2^63"),
    "dtype alone": (lambda: Tensor(dtype=torch.int8), "torch.int8 without a shape", "shape"),
    "dtype": (lambda: Tensor(shape=(2,), dtype="int8"), "SambaTensor(dtype=...)", "torch.dtype"),
    "name": (lambda: Tensor(torch.ones(2), name=5), "SambaTensor(name=...)", "int 5"),
    "name to convert": (
        lambda: samba.from_torch_tensor(torch.ones(2), name=5),
        "SambaTensor(name=...)",
        "int 5",
    ),
    "region_name": (lambda: Tensor(torch.ones(2), region_name=[]), "region_name=", "list []"),
    "batch_dim": (lambda: Tensor(torch.ones(2), batch_dim="B"), "batch_dim=", "from -1 to 0"),
    "batch_dim of another": (lambda: Tensor(torch.ones(2), batch_dim=1), "batch_dim=", "found 1"),
    "named_dims": (lambda: Tensor(torch.ones(2), named_dims=5), "named_dims=", "int 5"),
    "named_dims of numbers": (lambda: Tensor(torch.ones(2), named_dims=[5]), "named_dims=", "[5]"),
    "sized_dims": (lambda: Tensor(torch.ones(2), sized_dims=[5]), "sized_dims=", "[5]"),
    "is_complex": (lambda: Tensor(torch.ones(2), is_complex="no"), "is_complex=", "'no'"),
    "materializer": (lambda: Tensor(shape=(2,), materializer=5), "materializer=", "int 5"),
    "materializer of others": (
        lambda: Tensor(shape=(2,), materializer=of_three),
        "materializer=",
        "(shape, dtype, layout)",
    ),
    "materializer of none": (
        lambda: Tensor(shape=(2,), materializer=lambda: torch.ones(2)),
        "materializer=",
        "parameters ()",
    ),
    "materializer = ...": (a_setter("materializer", "ones"), "materializer=", "str 'ones'"),
    "sn_name = ...": (a_setter("sn_name", 5), "SambaTensor.sn_name = ...", "int 5"),
    "sn_region_name = ...": (a_setter("sn_region_name", 5), "sn_region_name = ...", "int 5"),
    "mem_type = ...": (a_setter("mem_type", "zork"), "mem_type = ...", "'HBM'"),
    "host_memory = ...": (a_setter("host_memory", "zork"), "host_memory = ...", "True or False"),
    "fast_access = ...": (a_setter("fast_access", "yes"), "fast_access = ...", "True or False"),
    "is_fast_access": (lambda: Tensor.is_fast_access(5), "is_fast_access(name)", "int 5"),
    "grad = ...": (a_setter("grad", [1.0, 2.0]), "SambaTensor.grad = ...", "list [1.0, 2.0]"),
    "data = ...": (a_setter("data", [1.0, 2.0]), "SambaTensor.data = ...", "list [1.0, 2.0]"),
    "stride": (lambda: made().stride(5), "SambaTensor.stride(dim)", "from -2 to 1"),
    "stride of an empty one": (lambda: Tensor(shape=(2, 3)).stride(5), "stride(dim)", "-2 to 1"),
    "stride by name": (lambda: made().stride("B"), "SambaTensor.stride(dim)", "str 'B'"),
    "view_as": (lambda: made().view_as(5), "SambaTensor.view_as(other)", "int 5"),
    "backward": (lambda: made().backward(5), "SambaTensor.backward(gradient)", "int 5"),
    "retain_graph": (lambda: made().backward(retain_graph="a"), "retain_graph", "str 'a'"),
    "new_zeros": (lambda: made().new_zeros(None), "new_...(size)", "None"),
    "requires_grad": (lambda: made().new_ones(2, requires_grad="a"), "requires_grad=", "str 'a'"),
    "cpu": (lambda: made().cpu(inplace="a"), "SambaTensor.cpu(inplace=...)", "str 'a'"),
    "seed": (lambda: samba.session.enable_lazy_param(seed="a"), "seed=", "str 'a'"),
    "half a seed": (lambda: samba.session.enable_lazy_param(seed=0.5), "seed=", "float 0.5"),
    "threads": (
        lambda: samba.session.enable_lazy_param(init_threads="a"),
        "init_threads=",
        "str 'a'",
    ),
    "inverse": (
        lambda: samba.session.enable_lazy_param(inverse_transform_sampling="a"),
        "inverse_transform_sampling=",
        "str 'a'",
    ),
}


@covers(
    "samba.SambaTensor(shape, dtype, name, region_name, materializer)",
    "samba.SambaTensor.stride(dim)",
    "samba.session.enable_lazy_param(seed)",
)
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_refused_when_it_is_given(case):
    call, *parts = WRONG[case]
    with pytest.raises(SambaError) as caught:
        call()
    assert isinstance(caught.value, ArgumentError)
    for part in parts:
        assert part in str(caught.value)
    assert not samba.session.use_lazy_param()


@covers("samba.SambaTensor(materializer)")
def test_a_materializer_is_called_as_its_signature_says():
    def values(shape, dtype, requires_grad=True, fill=1.0):
        return torch.full(shape, fill, dtype=dtype)

    forms = [
        lambda tensor: torch.ones(tensor.shape),
        lambda tensor, rng: rng.uniform(1.0, 1.0, tensor.shape),
        lambda shape, dtype: torch.ones(shape, dtype=dtype),
        lambda *, shape, dtype, requires_grad: torch.ones(shape, dtype=dtype),
        lambda **wanted: torch.ones(wanted["shape"], dtype=wanted["dtype"]),
        values,
    ]
    for form in forms:
        assert Tensor(shape=(2,), materializer=form).torch_tensor().tolist() == [1, 1]


@covers("samba.SambaTensor.mem_type", "samba.SambaTensor(batch_dim)")
def test_what_the_page_names_is_taken():
    tensor = Tensor(torch.ones(()), batch_dim=0)
    for kind in ("DDR", "HBM", "Host", "host", None):
        tensor.mem_type = kind
        assert tensor.mem_type == kind
    with pytest.raises(IndexError):
        tensor.stride(0)


def storage(values: torch.Tensor):
    bare = values.untyped_storage()
    return torch.TypedStorage(wrap_storage=bare, dtype=values.dtype, _internal=True)


def registered(name: str) -> torch.Tensor:
    return ensure_bagua_tensor(torch.zeros(4), name, "wrong")


WRONG_BAGUA = {
    "getter": (
        lambda: ensure_bagua_tensor(torch.ones(2), getter_closure=5),
        "getter_closure=",
        "int 5",
    ),
    "setter": (
        lambda: ensure_bagua_tensor(torch.ones(2), setter_closure=5),
        "setter_closure=",
        "int 5",
    ),
    "name": (lambda: ensure_bagua_tensor(torch.ones(2), 5), "(name=...)", "int 5"),
    "module": (
        lambda: ensure_bagua_tensor(torch.ones(2), "a", 5),
        "(module_name=...)",
        "int 5",
    ),
    "a list": (lambda: bagua_set_storage(registered("a"), [1, 2]), "(storage)", "list [1, 2]"),
    "offset": (
        lambda: bagua_set_storage(registered("b"), torch.ones(8).untyped_storage(), "a"),
        "(storage_offset)",
        "str 'a'",
    ),
    "negative offset": (
        lambda: bagua_set_storage(registered("c"), torch.ones(8).untyped_storage(), -1),
        "(storage_offset)",
        "int -1",
    ),
    "too small": (
        lambda: bagua_set_storage(registered("d"), torch.ones(4).untyped_storage(), 1),
        "16 bytes",
        "20 bytes",
    ),
    "another dtype": (
        lambda: bagua_set_storage(registered("e"), storage(torch.ones(4, dtype=torch.int32))),
        "a storage of torch.int32",
        "torch.float32",
    ),
    "no tensor": (
        lambda: bagua_setter_closure(registered("f"), 5),
        "bagua_setter_closure",
        "int 5",
    ),
}


@covers(
    "bagua.BaguaTensor.ensure_bagua_tensor(getter_closure, setter_closure)",
    ".bagua_set_storage(storage, storage_offset)",
)
@pytest.mark.parametrize("case", WRONG_BAGUA)
def test_a_wrong_argument_of_a_bagua_tensor_is_refused_when_it_is_given(case):
    call, *parts = WRONG_BAGUA[case]
    with pytest.raises(ArgumentError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


@covers("bagua.BaguaTensor.bagua_set_storage(storage)")
def test_a_storage_of_the_same_type_and_bytes_are_taken():
    """As ``torch.Tensor.set_`` does: bytes have no type, and are read as the tensor's."""
    values = torch.arange(4.0)
    for given in (storage(values), values.untyped_storage()):
        tensor = ensure_bagua_tensor(torch.zeros(4))
        bagua_set_storage(tensor, given)
        assert tensor.tolist() == [0, 1, 2, 3]


METHODS = {
    "bagua_backend_tensor": (),
    "bagua_getter_closure": (),
    "bagua_setter_closure": (torch.ones(2),),
    "bagua_mark_communication_ready": (),
    "bagua_mark_communication_ready_without_synchronization": (),
    "bagua_set_storage": (torch.ones(2).untyped_storage(),),
}


@covers("bagua.BaguaTensor.ensure_bagua_tensor")
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_a_tensor_that_is_no_bagua_tensor_name_themselves(method):
    with pytest.raises(ArgumentError, match=rf"{method}: .*ensure_bagua_tensor"):
        getattr(Tensor(torch.ones(2)), method)(*METHODS[method])


@covers("bagua.BaguaTensor.ensure_bagua_tensor(name, module_name)", ".to_bagua_tensor(name)")
def test_two_tensors_of_one_name_and_module_are_refused():
    first = registered("twice")
    with pytest.raises(ArgumentError, match="'twice' in module 'wrong'"):
        registered("twice")
    with pytest.raises(ArgumentError, match="'twice' in module 'wrong'"):
        samba.SambaTensor(first).to_bagua_tensor("twice", "wrong")
    assert ensure_bagua_tensor(first, "twice", "wrong") is first
    ensure_bagua_tensor(torch.zeros(4), "twice", "another")
    del first
    registered("twice")  # nobody has the first any more
