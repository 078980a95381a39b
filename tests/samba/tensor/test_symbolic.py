"""What is computed while parameters are made lazily has no values until they are needed."""

from __future__ import annotations

import torch
from torch import nn

import samba
from samba.lazy_param import lazy_param


def test_what_is_computed_from_lazy_parameters_is_symbolic_until_it_is_needed():
    """``use_static_functional()`` holds: shapes and dtypes without values, then torch's values."""
    with lazy_param():
        assert samba.session.use_static_functional()
        layer = nn.Linear(4, 3)
        scale = layer.weight.abs().mean(1, dtype=torch.float64)
        first, second = torch.stack([layer.weight, layer.weight * 2]).unbind(0)
        noise = torch.bernoulli(layer.weight.sigmoid())
        nn.init.zeros_(layer.bias)
        layer.weight.mul_(3)  # later than what was computed
        deep = layer.weight
        for _ in range(40):
            deep = deep + deep * 0.5  # each once, not 2 ** 40 times
        assert isinstance(layer.weight.sum().item(), float)
        for result in (scale, first, second, noise, deep):
            assert isinstance(result, samba.SambaTensor) and not result.has_data
        assert (scale.shape, scale.dtype) == ((3,), torch.float64)
    weight = layer.weight.torch_tensor() / 3
    assert torch.equal(noise.torch_tensor(), noise.torch_tensor())
    close = torch.testing.assert_close
    close(scale.torch_tensor(), weight.abs().mean(1, dtype=torch.float64))
    close(first.torch_tensor(), weight)
    close(second.torch_tensor(), weight * 2)
    close(deep.torch_tensor(), weight * 3 * 1.5**40)
    scale.materialize_()
    assert scale.has_data and scale.torch().dtype == torch.float64
    samba.session.enable_lazy_param()
    try:
        assert samba.session.use_static_functional()
    finally:
        samba.session.disable_lazy_param()
    assert not samba.session.use_static_functional()


def test_what_shares_memory_or_has_a_gradient_is_computed_while_parameters_are_made_lazily():
    with lazy_param():
        tensor = samba.zeros(2, 3)
        tensor.view(-1)[0] = 1
        tensor.t()[1, 0] = 2
        assert tensor.contiguous() is tensor
        weight = samba.ones(3, requires_grad=True)
        (weight * 2).sum().backward()
        later = tensor + 1
        tensor.zero_()
        assert not later.has_data and float(later.sum()) == 9
    assert weight.grad.tolist() == [2, 2, 2]
    assert later.torch_tensor().tolist() == [[2, 3, 1], [1, 1, 1]]
