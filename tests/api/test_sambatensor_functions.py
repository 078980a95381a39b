"""torch and NumPy functions on SambaTensors, and arguments of methods by their names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import samba
from tests.api.covers import covers
from tests.api.tensors import counting, values

NUMPY = {
    "matmul": lambda x: np.matmul(x, x.T),
    "power": lambda x: np.power(x, 2.0),
    "array on the left": lambda x: np.ones((2, 3), np.float32) - x,
    "number on the left": lambda x: np.float32(2) * x,
    "comparison": lambda x: np.greater(x, 1),
    "reduce": np.add.reduce,
    "dtype": lambda x: np.add(x, x, dtype=np.float64),
    "mean": np.mean,
    "sum over an axis": lambda x: np.sum(x, axis=1, keepdims=True),
    "max": lambda x: np.max(x, axis=0),
    "std": np.std,
    "argmax": np.argmax,
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "transpose": np.transpose,
    "squeeze": lambda x: np.squeeze(x[None]),
    "concatenate": lambda x: np.concatenate([x, x], axis=1),
    "stack": lambda x: np.stack([x, x]),
    "where": lambda x: np.where(x > 1, x, 0.0),
    "norm": np.linalg.norm,
    "clip": lambda x: np.clip(x, 1, 3),
}


@covers("numpy.add")
@pytest.mark.parametrize("function", NUMPY.values(), ids=NUMPY)
def test_numpy_functions(function):
    tensor = counting(2, 3)
    with np.errstate(all="raise"):
        made, expected = function(tensor), function(tensor.numpy())
    assert type(made) is samba.SambaTensor
    assert made.numpy().dtype == expected.dtype
    # Small whole numbers are exact; the mean and the deviation may differ in their last bit.
    np.testing.assert_allclose(made.numpy(), expected, rtol=2**-23)


@covers("numpy.add")
def test_numpy_functions_that_torch_has_keep_autograd_and_bfloat16():
    tensor = counting(2, 3).requires_grad_()
    np.multiply(tensor, 3.0).sum().backward()
    np.mean(tensor, axis=0).sum().backward()
    assert torch.allclose(tensor.grad, torch.full((2, 3), 3.5))
    half = samba.ones(2, dtype=torch.bfloat16)
    assert np.add(half, 1).dtype == np.sum(half).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="requires grad"):
        np.cumsum(tensor)


@covers("numpy.add")
def test_numpy_gives_back_what_is_no_tensor():
    tensor, out = counting(2, 3), np.zeros((2, 3), np.float32)
    assert np.allclose(tensor, tensor.numpy()) is True
    assert np.shape(tensor) == (2, 3)
    assert np.add(tensor, tensor, out=out) is out
    assert out[1, 2] == 10
    fraction, whole = np.modf(samba.SambaTensor(torch.tensor([1.5])))
    assert (values(fraction), values(whole)) == ([0.5], [1])
    np.testing.assert_array_equal(tensor, tensor.numpy())


@covers("samba.SambaTensor")
def test_mixed_dtypes_follow_torchs_promotion():
    half, single = samba.ones(2, dtype=torch.bfloat16), samba.ones(2)
    assert samba.add(half, single).dtype == torch.float32
    assert (half * samba.ones(2, dtype=torch.int32)).dtype == torch.bfloat16
    assert torch.add(single, samba.ones(2, dtype=torch.float64)).dtype == torch.float64


@covers("samba.SambaTensor")
def test_what_is_traced_runs_eagerly_too():
    linear = samba.from_torch_model_(torch.nn.Linear(4, 3))
    half = samba.randn(2, 4).bfloat16()
    expected = torch.nn.functional.linear(half.torch().float(), linear.weight.data, linear.bias)
    assert torch.equal(linear(half).torch(), expected)
    labels = torch.tensor([2, -100])
    gold = torch.nn.functional.cross_entropy(expected, labels)
    for dtype in (torch.int16, torch.int32):
        loss = torch.nn.functional.cross_entropy(linear(half), samba.SambaTensor(labels.to(dtype)))
        assert loss == gold
        loss.backward()
    table = samba.from_torch_model_(torch.nn.Embedding(5, 2))
    assert torch.equal(table(labels.clamp(min=0).short()), table.weight[[2, 0]])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(samba.ones(2, 5).bfloat16())


# -- arguments by the names on the page ------------------------------------------------


@covers("samba.SambaTensor.backward(gradient, retain_graph)")
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
    "samba.SambaTensor.new_empty(size, dtype, requires_grad)",
    ".new_full(size, fill_value, dtype, device, requires_grad)",
    ".new_ones(size, dtype, requires_grad)",
    ".new_zeros(size, dtype, requires_grad)",
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
    "samba.SambaTensor.to", ".to(args, kwargs, dtype, other)", ".type_as(tensor)", ".type(dtype)"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32], ids=str)
def test_a_dtype_is_given_itself_or_by_another_tensor(dtype):
    tensor = samba.SambaTensor(torch.tensor([1.7, -2.2]), name="x")
    want = tensor.torch().to(dtype)
    others = torch.ones(3, dtype=dtype), samba.ones(1, dtype=dtype)
    for cast in (
        tensor.to(dtype),
        tensor.to(dtype=dtype, copy=True),
        *(tensor.to(other) for other in others),
        *(tensor.to(other=other) for other in others),
        *(tensor.type_as(tensor=other) for other in others),
        tensor.type(dtype),
        tensor.type(dtype=dtype),
    ):
        assert type(cast) is samba.SambaTensor
        assert torch.equal(cast.torch(), want) and (cast.dtype, cast.sn_name) == (dtype, "x")
    assert tensor.to(torch.float32) is tensor.type(torch.float32) is tensor
    assert tensor.type_as(samba.ones(1)) is tensor
    assert tensor.type(dtype=None) == "torch.FloatTensor"


@covers(
    "samba.from_torch_tensor(tensor, name, batch_dim, named_dims, region_name)", ".to_torch(obj)"
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
    "samba.set_seed", ".randn(dtype)", ".ones", ".ones(dtype)", ".zeros", ".empty", ".add", ".t"
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
