"""Models whose ordinary operations meet what a loop would never end for: they end, or say so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.errors import OpLimit

NAN, INF = float("nan"), float("inf")


class Whitened(nn.Module):
    """What a matrix that is not finite reaches: a pseudo-inverse, singular values, divisors."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = torch.linalg.svd(x, full_matrices=False)[1]
        return torch.linalg.pinv(x), values, torch.gcd(n, n * 0 + 6), torch.polygamma(10**9, x)


class LongWindow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x, 2**27, 1, 2**26)


def _named(**tensors: torch.Tensor) -> tuple[samba.SambaTensor, ...]:
    return tuple(samba.from_torch_tensor(t, name=name) for name, t in tensors.items())


def _load(model: nn.Module, inputs: tuple[samba.SambaTensor, ...], folder: Path) -> None:
    samba.from_torch_model_(model)
    pef = samba.session.compile(
        model, inputs, inference=True, config_dict={"output_folder": str(folder), "pef_name": "m"}
    )
    samba.utils.trace_graph(model, inputs, pef=pef, config_dict={})


def test_a_model_of_singular_values_ends_for_every_matrix(tmp_path: Path) -> None:
    model = Whitened()
    good = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    n = torch.tensor([-(2**31), 9], dtype=torch.int32)
    inputs = _named(x=good, n=n)
    _load(model, inputs, tmp_path)
    for bad in (INF, NAN, -INF):
        x = good.clone()
        x[0, 0] = bad
        found = samba.session.run(_named(x=x, n=n), model.output_tensors)
        inverse, values, divisors, _ = map(samba.to_torch, found)
        assert inverse.isnan().all()
        assert values.isnan().all()
        assert torch.equal(divisors, torch.gcd(n, torch.tensor(6, dtype=torch.int32)))
    found = samba.session.run(inputs, model.output_tensors)
    torch.testing.assert_close(samba.to_torch(found[0]), torch.linalg.pinv(good))


def test_what_is_beyond_a_bound_is_told_with_its_line(tmp_path: Path) -> None:
    model, inputs = LongWindow(), _named(x=torch.ones(1, 1, 2))
    with pytest.raises(OpLimit) as caught:
        _load(model, inputs, tmp_path)
        samba.session.run(inputs, model.output_tensors)
    error = caught.value
    assert (error.found, error.most) == (2**27 + 2, 2**26)
    assert error.op.startswith("aten.max_pool1d")
    assert "test_endless.py:" in error.source
    assert "the padded data, in elements, is 134217730" in str(error)
