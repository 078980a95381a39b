"""Arguments of SambaTensor's methods, given by the names on its page."""

from __future__ import annotations

import pytest
import torch

import samba
from samba.errors import UnsupportedKeyword
from tests.api.covers import covers
from tests.api.tensors import counting, values


@covers("samba.SambaTensor.__getitem__(x)")
def test_every_documented_kind_of_index_reads_what_torch_reads():
    tensor, index = counting(2, 3), samba.SambaTensor(torch.Tensor([0, 2]))
    plain = tensor.torch()
    assert values(tensor[1]) == plain[1].tolist()
    assert values(tensor[:, 1:]) == plain[:, 1:].tolist()
    assert tensor[None].shape == (1, 2, 3)
    assert values(tensor[:, index]) == values(tensor[:, [0, 2]]) == plain[:, [0, 2]].tolist()
    assert values(tensor[None, :, index]) == plain[None][:, :, [0, 2]].tolist()


@covers("samba.SambaTensor.__setitem__(x)", "samba.SambaTensor.__setitem__(update)")
def test_an_update_is_a_number_or_a_tensor():
    for update, want in ((7, 7), (2.5, 2.5), (samba.ones(2), 1)):
        tensor = samba.zeros(2, 3)
        tensor[:, 2] = update
        assert values(tensor) == [[0, 0, want], [0, 0, want]]
    tensor[None, :, samba.SambaTensor(torch.Tensor([0, 2]))] = 2 * samba.ones(1, 2, 2)
    assert values(tensor) == [[2, 0, 2], [2, 0, 2]]


@covers("samba.SambaTensor.backward(gradient)", "samba.SambaTensor.backward(retain_graph)")
@pytest.mark.parametrize("make", [samba.SambaTensor, torch.Tensor], ids=["samba", "torch"])
def test_a_gradient_and_whether_the_graph_stays(make):
    tensor = counting(3).requires_grad_()
    product = tensor * 2
    gradient = make(torch.tensor([1.0, 2.0, 3.0]))
    product.backward(gradient=gradient, retain_graph=True)
    product.backward(gradient=gradient, retain_graph=False)
    assert tensor.grad.tolist() == [4, 8, 12]  # gradients of leaves accumulate
    with pytest.raises(RuntimeError, match="second time"):
        product.backward(gradient=gradient)
    with pytest.raises(RuntimeError, match="scalar"):
        (tensor * 2).backward()


@covers(
    "samba.SambaTensor.new_empty(size)",
    "samba.SambaTensor.new_empty(dtype)",
    "samba.SambaTensor.new_empty(requires_grad)",
    "samba.SambaTensor.new_full(size)",
    "samba.SambaTensor.new_full(fill_value)",
    "samba.SambaTensor.new_full(dtype)",
    "samba.SambaTensor.new_full(device)",
    "samba.SambaTensor.new_full(requires_grad)",
    "samba.SambaTensor.new_ones(size)",
    "samba.SambaTensor.new_ones(dtype)",
    "samba.SambaTensor.new_ones(requires_grad)",
    "samba.SambaTensor.new_zeros(size)",
    "samba.SambaTensor.new_zeros(dtype)",
    "samba.SambaTensor.new_zeros(requires_grad)",
)
@pytest.mark.parametrize(
    "size", [(2, 3), [2, 3], torch.Size([2, 3])], ids=["tuple", "list", "Size"]
)
@pytest.mark.parametrize("name", ["new_empty", "new_full", "new_ones", "new_zeros"])
def test_new_tensors_by_keyword(name, size):
    source = samba.ones((), dtype=torch.bfloat16, name="x")
    make = getattr(source, name)
    fill = {"fill_value": 5.0} if name == "new_full" else {}
    plain = make(size=size, **fill)
    assert (plain.shape, plain.dtype, plain.requires_grad) == ((2, 3), torch.bfloat16, False)
    wished = make(size=size, dtype=torch.float64, requires_grad=True, **fill)
    assert (wished.shape, wished.dtype) == ((2, 3), torch.float64)
    wished.sum().backward()
    assert wished.grad.tolist() == [[1] * 3] * 2
    number = {"new_full": 5, "new_ones": 1, "new_zeros": 0}.get(name)
    if number is not None:
        assert values(plain) == values(wished.detach()) == [[number] * 3] * 2
    if name == "new_full":  # documented to have no effect
        assert make(size, 5.0, device=torch.device("cuda")).device == torch.device("cpu")


@covers(
    "samba.SambaTensor.permute(dims)",
    "samba.SambaTensor.reshape(dims)",
    "samba.SambaTensor.view_as(other)",
    "samba.SambaTensor.size(dim)",
    "samba.SambaTensor.stride(dim)",
)
def test_shapes_by_argument():
    cube = counting(2, 3, 4)
    plain = cube.torch()
    assert torch.equal(cube.permute(2, 0, 1).torch(), plain.permute(2, 0, 1))
    assert torch.equal(cube.reshape(4, -1).torch(), plain.reshape(4, -1))
    view = cube.view_as(other=samba.empty(6, 4))
    view[0, 0] = 50
    assert view.shape == (6, 4) and plain[0, 0, 0] == 50  # the same data
    assert [cube.size(dim=d) for d in (0, 1, -1)] == [2, 3, 4]
    assert [cube.stride(dim=d) for d in (0, 1, -1)] == [12, 4, 1]
    assert (cube.size(dim=None), cube.stride(dim=None)) == (torch.Size([2, 3, 4]), (12, 4, 1))


@covers(
    "samba.SambaTensor.to(args)",
    "samba.SambaTensor.to(kwargs)",
    "samba.SambaTensor.to(dtype)",
    "samba.SambaTensor.to(other)",
    "samba.SambaTensor.type_as(tensor)",
    "samba.SambaTensor.type(dtype)",
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32], ids=str)
def test_a_dtype_is_given_itself_or_by_another_tensor(dtype):
    tensor = samba.SambaTensor(torch.tensor([1.7, -2.2]), name="x")
    want = tensor.torch().to(dtype)
    others = torch.ones(3, dtype=dtype), samba.ones(1, dtype=dtype)
    for cast in (
        tensor.to(dtype),
        tensor.to(dtype=dtype),
        *(tensor.to(other) for other in others),
        *(tensor.to(other=other) for other in others),
        *(tensor.type_as(tensor=other) for other in others),
        tensor.type(dtype),
        tensor.type(dtype=dtype),
    ):
        assert type(cast) is samba.SambaTensor
        assert torch.equal(cast.torch(), want) and cast.dtype is dtype
    assert tensor.to(torch.float32) is tensor.type(torch.float32) is tensor
    assert tensor.type_as(samba.ones(1)) is tensor
    assert tensor.type(dtype=None) == "torch.FloatTensor"


@covers("samba.SambaTensor.type(non_blocking)", "samba.SambaTensor.type(kwargs)")
@pytest.mark.parametrize("keyword", ["non_blocking", "async", "memory_format"])
def test_keywords_of_type_throw(keyword):
    with pytest.raises(UnsupportedKeyword, match=rf"type\({keyword}\): not supported"):
        counting(3).type(torch.int8, **{keyword: True})


@covers("samba.SambaTensor.requires_grad_(requires_grad)")
def test_whether_autograd_records():
    tensor = counting(3)
    assert tensor.requires_grad_(requires_grad=True) is tensor
    assert (tensor * 2).requires_grad
    assert tensor.requires_grad_(requires_grad=False) is tensor
    assert not (tensor * 2).requires_grad


@covers("samba.SambaTensor.is_fast_access(name)", "samba.SambaTensor.fast_access")
def test_fast_access_is_asked_by_name():
    counting(2, name="x").fast_access = True
    samba.SambaTensor(shape=(2,), name="out__grad").fast_access = True
    ask = samba.SambaTensor.is_fast_access
    assert [ask(name=name) for name in ("x", "out__grad", "y")] == [True, True, False]


@covers(
    "samba.from_torch_tensor(tensor)",
    "samba.from_torch_tensor(name)",
    "samba.from_torch_tensor(batch_dim)",
    "samba.from_torch_tensor(named_dims)",
    "samba.from_torch_tensor(region_name)",
    "samba.to_torch(obj)",
)
def test_conversion_by_keyword():
    source = torch.zeros(2, 3)
    tensor = samba.from_torch_tensor(
        tensor=source, name="x", batch_dim=0, named_dims=("B", None), region_name="pool"
    )
    assert (tensor.sn_name, tensor.sn_region_name) == ("x", "pool")
    assert (tensor.batch_dim, tensor.named_dims) == (0, ("B", None))
    source[0, 0] = 4
    assert tensor[0, 0] == 4
    assert samba.from_torch_tensor(tensor=tensor, name="y") is tensor and tensor.sn_name == "x"
    plain = samba.to_torch(obj=tensor)
    assert type(plain) is torch.Tensor and torch.equal(plain, source)
    assert samba.to_torch(obj=source) is source and samba.to_torch(obj=None) is None


@covers(
    "samba.set_seed",
    "samba.randn(dtype)",
    "samba.ones",
    "samba.ones(dtype)",
    "samba.zeros",
    "samba.empty",
    "samba.add",
    "samba.t",
)
def test_functions_of_the_examples():
    samba.set_seed(1)
    tensor = samba.randn(2, 2)
    shown = torch.tensor([[0.6614, 0.2669], [0.0617, 0.6213]])  # on the page, four digits
    torch.testing.assert_close(tensor.data, shown, atol=5e-5, rtol=0)
    assert samba.randn((), dtype=torch.bfloat16).dtype is torch.bfloat16
    assert values(samba.ones((2,), dtype=torch.int8)) == values(samba.ones(2)) == [1, 1]
    assert samba.ones((), dtype=torch.float64).dtype is torch.float64
    assert values(samba.zeros(2, 3)) == [[0] * 3] * 2
    assert samba.empty(3, 4, 5).size() == torch.Size([3, 4, 5])
    half, single = samba.ones(2, dtype=torch.bfloat16), samba.full((2,), 2.0)
    assert (values(samba.add(half, single)), samba.add(half, single).dtype) == (
        [3, 3],
        torch.float32,
    )
    assert values(samba.t(counting(2, 3))) == counting(2, 3).torch().T.tolist()
