"""torch and NumPy functions on SambaTensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import samba
from tests.api.covers import covers
from tests.api.tensors import counting, values


@covers("numpy.add", "torch.nn.functional.relu", "torch.nn.Conv2d", "torch.Tensor.split")
def test_functions_of_the_slides():
    a, b = samba.ones(2, 4), samba.zeros(2, 4)
    assert values(np.add(a, b)) == [[1] * 4] * 2
    assert values(np.add(a, torch.ones(2, 4))) == values(a + 1) == [[2] * 4] * 2
    x = samba.randn(10, 20, name="input", batch_dim=0)
    relu = torch.nn.functional.relu(x)
    assert torch.equal(relu.torch(), x.torch().clamp(min=0))
    first, second = x.split(10, dim=1)
    assert torch.equal(second.torch(), x.torch()[:, 10:])
    conv = torch.nn.Conv2d(3, 4, (3, 3), padding=1)
    image = samba.randn(2, 3, 5, 5)
    assert torch.equal(conv(image).torch(), conv(image.torch()))
    assert type(relu) is type(first) is type(conv(image)) is samba.SambaTensor


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
