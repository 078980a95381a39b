"""Convolutions with kernels of one element, whichever way XLA emits fusions.

XLA's earlier emitters lost the transposition of a cotangent that two others read, with an option
that is not used any more (``docs/decisions/0015-fusion.md``).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from samba import utils


class Pointwise(nn.Module):
    """The cotangent of the last convolution is read for its bias and for what comes before."""

    def __init__(self, conv: type[nn.Conv1d] | type[nn.Conv2d]) -> None:
        super().__init__()
        self.first, self.last = conv(4, 8, 1), conv(8, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first(x))
        return h.sum() + (self.last(h) ** 2).sum()


@pytest.mark.parametrize(
    ("conv", "shape"), [(nn.Conv1d, (2, 4, 12)), (nn.Conv2d, (2, 4, 3, 5))], ids=["1d", "2d"]
)
def test_gradients_are_torchs(conv, shape, tmp_path):
    model, x = Pointwise(conv), torch.randn(shape)
    model(x).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    samba.from_torch_model_(model)
    inputs = (samba.from_torch_tensor(x, name="x"),)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.0)
    config = {"output_folder": str(tmp_path)}
    pef = samba.session.compile(model, inputs, optimizer, config_dict=config)
    outputs = utils.trace_graph(model, inputs, optimizer, pef=pef)
    samba.session.run(inputs, outputs)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.sn_grad, wanted[name], rtol=1e-5, atol=1e-5)
