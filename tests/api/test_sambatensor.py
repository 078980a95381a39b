"""The page of SambaTensor: construction, indexing, casts, new tensors, host memory, autograd."""

from __future__ import annotations

import pytest
import torch

import samba
from samba.errors import ArgumentError, NoHostData, UnsupportedKeyword
from tests.api.covers import covers
from tests.api.tensors import counting, values

# -- construction -----------------------------------------------------------


@covers(
    "samba.SambaTensor",
    ".SambaTensor(torch_tensor, name)",
    ".from_torch_tensor",
    "samba.SambaTensor.data_ptr",
)
def test_both_constructions_share_memory():
    source = torch.Tensor([1, 2])
    direct = samba.SambaTensor(source)
    converted = samba.from_torch_tensor(source, name="samba_tensor1")
    source[0] = 7
    assert isinstance(converted, torch.Tensor) and type(source) is torch.Tensor
    assert direct.tolist() == converted.tolist() == [7, 2]
    assert direct.data_ptr() == converted.data_ptr() == source.data_ptr()
    assert (direct.sn_name, converted.sn_name) == ("", "samba_tensor1")
    assert samba.from_torch_tensor(converted, name="other") is converted
    assert samba.from_torch_tensor(None) is None


@covers("samba.SambaTensor(shape, dtype)")
def test_an_empty_tensor_has_a_shape_and_a_dtype():
    tensor = samba.SambaTensor(shape=(2, 3), dtype=torch.bfloat16, name="e")
    assert (tensor.shape, tensor.dtype, tensor.has_data) == ((2, 3), torch.bfloat16, False)
    assert samba.SambaTensor(shape=[4]).dtype == torch.get_default_dtype()
    with pytest.raises(NoHostData, match=r"SambaTensor e of shape \(2, 3\)"):
        tensor + 1  # pyright: ignore[reportUnusedExpression]  # it raises
    for clash in ({"shape": (2,)}, {"dtype": torch.int8}):
        with pytest.raises(ArgumentError, match="one or the other"):
            samba.SambaTensor(torch.ones(2), **clash)


@covers(
    "samba.SambaTensor(batch_dim, named_dims, sized_dims, is_complex)",
    "samba.SambaTensor.batch_dim",
)
def test_labels_are_kept_by_casts_and_copies():
    tensor = samba.SambaTensor(
        torch.ones(4, 2),
        batch_dim=0,
        named_dims=("B", "F"),
        sized_dims=(None, "width"),
        is_complex=True,
    )
    for same in (tensor, tensor.bfloat16(), tensor.to(torch.float64)):
        assert (same.batch_dim, same.named_dims) == (0, ("B", "F"))
        assert same.sized_dims == (None, "width")
    assert not tensor.is_complex()  # torch's question: the numbers themselves are real
    tensor.batch_dim = 1
    assert tensor.batch_dim == 1
    with pytest.raises(ArgumentError, match="each of the 2 dimensions"):
        samba.SambaTensor(torch.ones(4, 2), named_dims=("B",))


@covers(
    "samba.SambaTensor(materializer)",
    "samba.SambaTensor.materializer",
    ".materializer_provided",
    ".materialize_",
    ".torch_tensor",
    ".clear_data",
)
def test_a_materializer_fills_an_empty_tensor():
    def twos(shape, dtype, requires_grad):
        assert requires_grad is False
        return torch.full(shape, 2, dtype=dtype)

    tensor = samba.SambaTensor(shape=(2, 2), dtype=torch.int16, materializer=twos)
    assert tensor.materializer is twos
    assert tensor.torch_tensor().tolist() == [[2, 2], [2, 2]]
    assert not tensor.has_data
    tensor.materialize_()
    assert values(tensor * 2) == [[4, 4], [4, 4]]
    tensor[0, 0] = 9
    tensor.materialize_()  # it has data, so nothing happens
    assert tensor[0, 0] == 9
    tensor.clear_data()
    with pytest.raises(NoHostData):
        tensor.torch()
    tensor.materializer = lambda t: torch.zeros(t.shape)
    assert tensor.torch_tensor().tolist() == [[0, 0], [0, 0]]
    bare = samba.SambaTensor(torch.ones(1))
    assert (bare.materializer, bare.materializer_provided) == (None, False)
    assert tensor.materializer_provided


@covers(
    "samba.SambaTensor(region_name)",
    "samba.SambaTensor.sn_region_name",
    ".sn_name",
    ".sn_grad_name",
)
def test_names_of_the_documented_example():
    t0 = samba.SambaTensor(torch.Tensor([1, 2]), name="t0")
    t1 = samba.SambaTensor(torch.Tensor([3, 4]), name="t1", region_name="t1_other")
    t2 = samba.SambaTensor(torch.Tensor([1, 2]), name="t2", region_name="t0")
    assert [t.sn_region_name for t in (t0, t1, t2)] == ["t0", "t1_other", "t0"]
    t0.sn_name = "renamed"
    assert (t0.sn_name, t0.sn_region_name, t0.sn_grad_name) == (
        "renamed",
        "renamed",
        "renamed__grad",
    )
    t0.sn_region_name = "pool"
    assert (t0.sn_name, t0.sn_region_name) == ("renamed", "pool")
    bare = samba.SambaTensor(torch.ones(1))
    assert (bare.sn_name, bare.sn_region_name, bare.sn_grad_name) == ("", "", "")


# -- indexing ---------------------------------------------------------------

INDICES = {
    "int": (1,),
    "negative": (-1,),
    "ints": (1, 2, 0),
    "slice": (slice(0, 2),),
    "steps": (slice(None), slice(0, None, 2)),
    "None": (None, 0),
    "list": ([1, 0],),
    "list inside": (slice(None), [2, 0]),
    "tensor": (slice(None), torch.tensor([0, 2])),
    "documented": (None, slice(None), torch.tensor([0, 2])),
    "mask": (torch.tensor([True, False]),),
    "whole mask": (torch.arange(24).reshape(2, 3, 4) > 10,),
    "ellipsis": (..., 0),
}


def as_samba(index: tuple, dtype: torch.dtype | None) -> tuple:
    def one(item):
        if not isinstance(item, torch.Tensor):
            return item
        cast = item if dtype is None or item.dtype is torch.bool else item.to(dtype)
        return samba.SambaTensor(cast)

    return tuple(map(one, index))


@covers("samba.SambaTensor.__getitem__", ".__getitem__(x)")
@pytest.mark.parametrize("dtype", [None, torch.int32, torch.float32], ids=str)
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_reading_by_index(index, dtype):
    tensor = counting(2, 3, 4)
    found = tensor[as_samba(index, dtype)]
    assert torch.equal(found.torch(), tensor.torch()[index])
    assert type(found) is samba.SambaTensor
    if len(index) == 1:
        assert torch.equal(tensor[as_samba(index, dtype)[0]].torch(), found.torch())


@covers("samba.SambaTensor.__setitem__", ".__setitem__(x, update)")
@pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_writing_by_index(index, dtype):
    tensor, twin = counting(2, 3, 4), counting(2, 3, 4).torch().clone()
    shape = twin[index].shape
    for update in (5, 2.5, samba.full(shape, 7.0), torch.full(shape, 8.0)):
        tensor[as_samba(index, dtype)] = update
        twin[index] = update.torch() if isinstance(update, samba.SambaTensor) else update
        assert torch.equal(tensor.torch(), twin)


@covers("samba.SambaTensor.__setitem__")
def test_assignment_of_the_documented_example():
    source = torch.zeros(2, 3)
    tensor = samba.SambaTensor(source, name="x")
    tensor[:, 2] = samba.ones(2)
    index = samba.SambaTensor(torch.Tensor([0, 2]))
    assert values(tensor) == [[0, 0, 1], [0, 0, 1]]
    tensor[None, :, index] = 2 * samba.ones(1, 2, 2)
    assert source.tolist() == [[2, 0, 2], [2, 0, 2]]  # the memory is shared
    assert tensor.sn_name == "x"


@covers("samba.SambaTensor.__getitem__")
def test_indices_that_cannot_be():
    tensor = counting(2, 3)
    with pytest.raises(IndexError, match="not whole, expected whole numbers"):
        tensor[:, samba.SambaTensor(torch.Tensor([0.5, 2]))]
    for index in (5, (0, 3), samba.SambaTensor(torch.Tensor([4]))):
        with pytest.raises(IndexError, match="out of bounds"):
            tensor[index]
    empty = samba.SambaTensor(shape=(2, 3))
    with pytest.raises(NoHostData, match="__getitem__"):
        empty[0]
    with pytest.raises(NoHostData, match="__setitem__"):
        empty[0] = 1


# -- casts and new tensors --------------------------------------------------


@covers("samba.SambaTensor.bfloat16", ".bool", ".float", ".int", ".long", ".short", ".dtype")
@pytest.mark.parametrize("name", ["bfloat16", "bool", "float", "int", "long", "short"])
def test_casts_by_name_are_type(name):
    source = torch.tensor([0.0, 1.7, -3.2], dtype=torch.float64)
    tensor = samba.SambaTensor(source, name="x", region_name="r", batch_dim=0)
    cast = getattr(tensor, name)()
    assert cast.dtype == getattr(torch, name)
    assert torch.equal(cast.torch(), source.type(getattr(torch, name)))
    assert (cast.sn_name, cast.sn_region_name, cast.batch_dim) == ("x", "r", 0)
    assert getattr(cast, name)() is cast
    assert (tensor.dtype, tensor.tolist()) == (torch.float64, source.tolist())


@covers("samba.SambaTensor.type", ".type_as")
def test_type_names_or_casts():
    tensor = counting(3, name="x")
    assert tensor.type() == "torch.FloatTensor"
    for dtype in (torch.float16, "torch.HalfTensor", torch.HalfTensor):
        assert tensor.type(dtype).dtype == torch.float16
        assert tensor.type(dtype=dtype, non_blocking=False).sn_name == "x"
    assert tensor.type(torch.float32) is tensor
    assert tensor.type_as(tensor=samba.ones(1, dtype=torch.int8)).dtype == torch.int8
    assert tensor.type_as(torch.ones(1)) is tensor


@covers("samba.SambaTensor.type", ".type(non_blocking, kwargs)")
@pytest.mark.parametrize("keyword", ["non_blocking", "async", "memory_format"])
def test_type_refuses_what_the_hardware_does_not_have(keyword):
    with pytest.raises(UnsupportedKeyword, match=rf"type\({keyword}\): not supported") as caught:
        counting(3).type(torch.int8, **{keyword: True})
    assert caught.value.found == (keyword,)
    assert isinstance(caught.value, TypeError)


@covers("samba.SambaTensor.new_empty", ".new_full", ".new_ones", ".new_zeros")
@pytest.mark.parametrize("empty", [False, True])
def test_new_tensors(empty):
    tensor = samba.ones((), dtype=torch.bfloat16, name="x")
    if empty:
        tensor.clear_data()
    zeros, ones, full = tensor.new_zeros, tensor.new_ones, tensor.new_full
    assert values(zeros((2, 3))) == [[0] * 3] * 2
    assert values(ones(3)) == values(ones([3])) == values(ones(size=iter((3,)))) == [1] * 3
    assert values(ones(2, 1)) == [[1], [1]]  # torch's own form
    assert values(full((2,), 5.0)) == values(full(size=[2], fill_value=5)) == [5, 5]
    for made in (zeros(2), ones(2), full((2,), 1), tensor.new_empty(2)):
        assert (made.dtype, made.shape, made.sn_name) == (torch.bfloat16, (2,), "")
        assert not made.requires_grad
    for made in (
        zeros((2,), torch.float64, True),
        ones(2, dtype=torch.float64, requires_grad=True),
        full((2,), 1, torch.float64, None, True),
        tensor.new_empty((2,), torch.float64, requires_grad=True),
    ):
        assert (made.dtype, made.requires_grad) == (torch.float64, True)
    assert full((2,), 1, device="cuda", requires_grad=None).device.type == "cpu"


# -- torch's questions and forms --------------------------------------------


@covers(
    "samba.SambaTensor.dim",
    ".ndim",
    ".ndimension",
    ".numel",
    ".nelement",
    ".size",
    ".size(dim)",
    ".shape",
    ".stride",
    ".stride(dim)",
    ".element_size",
    ".is_floating_point",
    ".device",
)
@pytest.mark.parametrize("empty", [False, True])
def test_questions(empty):
    tensor = samba.empty(3, 4, 5, dtype=torch.bfloat16)
    if empty:
        tensor.clear_data()
    assert tensor.size() == tensor.shape == torch.Size([3, 4, 5])
    assert [tensor.size(dim=d) for d in (0, 1, -1)] == [3, 4, 5]
    assert (tensor.size(-1), tensor.stride(-1)) == (5, 1)
    assert tensor.dim() == tensor.ndim == tensor.ndimension() == 3
    assert tensor.numel() == tensor.nelement() == 60
    assert tensor.stride() == (20, 5, 1)
    assert [tensor.stride(dim=d) for d in (0, 1, -1)] == [20, 5, 1]
    assert (tensor.size(dim=None), tensor.stride(dim=None)) == (tensor.shape, (20, 5, 1))
    assert tensor.element_size() == 2
    assert tensor.is_floating_point()
    assert not samba.ones(1, dtype=torch.int8).is_floating_point()
    assert tensor.device == torch.device("cpu")


@covers(
    "samba.SambaTensor.T",
    ".permute",
    ".permute(dims)",
    ".reshape",
    ".reshape(dims)",
    ".view_as",
    ".view_as(other)",
)
def test_other_shapes_of_the_same_values():
    tensor = counting(2, 3)
    plain = tensor.torch()
    assert torch.equal(tensor.T.torch(), plain.T)
    assert torch.equal(samba.t(tensor).torch(), plain.T)
    cube = counting(2, 3, 4)
    for permuted in (cube.permute(2, 0, 1), cube.permute((2, 0, 1)), cube.permute(dims=[2, 0, 1])):
        assert torch.equal(permuted.torch(), cube.torch().permute(2, 0, 1))
    for flat in (tensor.reshape(-1), tensor.reshape((6,)), tensor.reshape(6)):
        assert values(flat) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(cube.reshape(4, -1).torch(), cube.torch().reshape(4, -1))
    view = tensor.view_as(other=samba.SambaTensor(shape=(3, 2), name="other"))
    assert torch.equal(view.torch(), plain.reshape(3, 2))
    view[0, 0] = 9
    assert plain[0, 0] == 9


@covers("samba.SambaTensor.item", ".torch", "samba.to_torch")
def test_values_leave_as_plain_numbers_and_tensors():
    assert samba.SambaTensor(torch.tensor([1.0])).item() == 1.0
    with pytest.raises(RuntimeError, match="2 elements"):
        samba.ones(2).item()
    source = torch.ones(2)
    tensor = samba.SambaTensor(source)
    for plain in (tensor.torch(), samba.to_torch(tensor)):
        assert type(plain) is torch.Tensor
        assert plain.data_ptr() == source.data_ptr()
    assert samba.to_torch(source) is source
    assert samba.to_torch(None) is None


@covers(
    "samba.SambaTensor.backward",
    ".grad",
    ".data",
    ".requires_grad",
    ".requires_grad_",
    ".requires_grad_(requires_grad)",
)
def test_autograd_on_the_host():
    tensor = counting(3)
    assert not tensor.requires_grad
    assert tensor.requires_grad_() is tensor
    assert tensor.requires_grad
    loss = (tensor**2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert type(tensor.grad) is torch.Tensor
    assert tensor.grad.tolist() == [0, 4, 8]
    for gradient in (samba.full((3,), 5.0), torch.full((3,), 5.0)):
        tensor.grad = None
        (tensor * 2).backward(gradient)
        assert tensor.grad.tolist() == [10, 10, 10]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    assert tensor.requires_grad_(requires_grad=False) is tensor
    assert not (tensor * 2).requires_grad
    tensor.requires_grad = True
    assert (tensor * 1).requires_grad
    assert type(tensor.data) is torch.Tensor
    tensor.data = torch.ones(3)
    assert tensor.data.tolist() == [1, 1, 1]
    assert not tensor.data.requires_grad


@covers("samba.SambaTensor.fast_access", ".is_fast_access", ".is_fast_access(name)", ".reusable")
def test_fast_access_belongs_to_a_name():
    tensor, twin, unnamed = counting(2, name="x"), counting(2, name="x"), counting(2)
    assert not (tensor.fast_access or samba.SambaTensor.is_fast_access("x"))
    tensor.fast_access = True
    unnamed.fast_access = True
    assert tensor.fast_access and twin.fast_access and unnamed.fast_access
    assert samba.SambaTensor.is_fast_access("x")
    assert not samba.SambaTensor.is_fast_access("")
    twin.fast_access = False
    assert not tensor.fast_access
    # The gradient of an output has no SambaTensor of its own; one of its name will do.
    samba.SambaTensor(shape=(2,), name="out__grad").fast_access = True
    assert samba.SambaTensor.is_fast_access(name="out__grad")
    assert counting(2, 3).reusable()
    assert not counting(2, 3).T.reusable()
    assert not samba.SambaTensor(shape=(2,)).reusable()
