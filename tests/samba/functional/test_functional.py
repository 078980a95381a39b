"""samba.functional: torch's functions in the documented places, and the added ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import samba
from samba import functional
from samba.functional._added import UndocumentedFunction

ADDED = {"addmm", "expand", "repeat", "triu_fill", "view", *functional.stir.__all__}
MODULES = (
    functional.arithmetic,
    functional.layers,
    functional.logical,
    functional.loss,
    functional.reduce,
    functional.stir,
    functional.tensorarithmetic,
    functional.tensorops,
)
SEEN = [
    *("conv1d", "conv2d", "conv3d", "conv_transpose2d", "max_pool2d", "linear", "embedding"),
    *("relu", "leaky_relu", "gelu", "silu", "sigmoid", "tanh", "softmax", "dropout", "dropout2d"),
    *("layer_norm", "batch_norm", "scaled_dot_product_attention"),
    *("cross_entropy", "mse_loss", "binary_cross_entropy"),
    *("add", "sub", "mul", "div", "neg", "abs", "pow", "exp", "log", "sqrt", "rsqrt", "reciprocal"),
    *("matmul", "addmm", "bmm", "sum", "mean", "max", "argmax", "topk", "cumsum", "minimum"),
    *("ge", "le", "gt", "lt", "eq", "bitwise_and", "bitwise_not", "logical_or"),
    *("cat", "stack", "split", "chunk", "view", "reshape", "flatten", "transpose", "permute"),
    *("unsqueeze", "squeeze", "expand", "repeat", "masked_fill", "index_select"),
]


def names_of(module):
    """The names that a module offers to ``import *``."""
    return getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])


def test_every_function_is_torchs_or_tested_here():
    for module in MODULES:
        for name in names_of(module):
            if name not in ADDED:
                function = getattr(module, name)
                assert function in (getattr(torch, name, None), getattr(F, name, None)), name
            assert getattr(functional, name) is getattr(module, name)
            assert getattr(samba, name) is getattr(module, name)


def test_names_are_unique_and_hide_nothing():
    names = [name for module in MODULES for name in names_of(module)]
    assert len(names) == len(set(names))
    own = {"directives", "env", "nn", "optim", "random", "session", "utils", "graph", "loss"}
    assert not own & set(names)
    assert not set(names) & set(samba.random.__all__)
    assert sorted([*names, "groupby"]) == sorted(functional.__all__)
    assert len(samba.__all__) == len(set(samba.__all__))


def test_what_apps_use_is_there():
    assert [name for name in SEEN if not hasattr(functional, name)] == []
    assert functional.arithmetic.mul is samba.mul
    assert functional.loss.cross_entropy is F.cross_entropy


def test_functions_take_and_give_samba_tensors():
    x = samba.randn(2, 3, name="x")
    total = samba.add(x, 1)
    assert type(total) is samba.SambaTensor
    assert torch.equal(total.torch(), x.torch() + 1)
    assert type(samba.mul(torch.ones(2), torch.ones(2))) is torch.Tensor
    for result in (samba.expand(x[None], 4, -1, -1), samba.repeat(x, 4, 1, 1)):
        assert result.shape == (4, 2, 3)
    assert samba.view(x, 3, 2).shape == (3, 2)


@pytest.mark.parametrize("lead", [(), (4,), (2, 4)])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 1), (1, 0), (2, -1.5)])
def test_addmm(lead, is_transposed, alpha, beta):
    x = torch.randn(*lead, 5, 3, dtype=torch.float64)
    weight = torch.randn(2, 3, dtype=torch.float64)
    bias = torch.randn(2, dtype=torch.float64)
    matrix = weight if is_transposed else weight.t()
    result = samba.addmm(bias, x, matrix, beta=beta, alpha=alpha, is_transposed=is_transposed)
    expected = alpha * F.linear(x, weight) + beta * bias
    assert torch.allclose(result, expected, rtol=1e-12, atol=1e-12)
    if not lead and not is_transposed:
        reference = torch.addmm(bias, x, matrix, beta=beta, alpha=alpha)
        assert torch.allclose(result, reference, rtol=1e-12, atol=1e-12)


def test_addmm_leaves_out_what_has_factor_zero_and_writes_out():
    nan = torch.full((2,), float("nan"))
    x, weight = torch.ones(1, 3), torch.ones(3, 2)
    assert samba.addmm(nan, x, weight, beta=0).tolist() == [[3, 3]]
    out = torch.empty(1, 2)
    assert samba.addmm(torch.ones(2), x, weight, out=out) is out
    assert out.tolist() == [[4, 4]]


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (2, 1, 3, 3)])
def test_triu_fill(shape):
    x = samba.randn(*shape)
    mask = torch.ones(shape, dtype=torch.bool).triu(diagonal=1)
    filled = samba.triu_fill(x, -10.0)
    assert torch.equal(filled.torch(), x.torch().masked_fill(mask, -10.0))
    assert type(filled) is samba.SambaTensor


def test_added_functions_are_traced():
    class Net(torch.nn.Module):
        def forward(self, x, weight):
            return samba.triu_fill(samba.addmm(x[0, 0], x, weight, is_transposed=True), -1.0)

    x, weight = torch.randn(2, 3, 3), torch.randn(3, 3)
    program = torch.export.export(Net(), (x, weight), strict=False)
    assert torch.equal(program.module()(x, weight), Net()(x, weight))


def test_groupby_gives_no_result_rather_than_a_wrong_one():
    with pytest.raises(UndocumentedFunction, match=r"samba.groupby.*sn_scatter"):
        samba.groupby(torch.ones(3), num_bins=2)
