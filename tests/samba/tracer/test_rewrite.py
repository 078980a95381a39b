"""Rewritten functions give torch's values and gradients, and can be exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samba.tracer.errors import TraceError
from samba.tracer.rewrite import rewritten
from tests.tracing import trace

G = torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G)


X, TARGET, VAR = randn(3, 5), randn(3, 5), randn(3, 1).abs()
COUNTS, WEIGHTS = torch.tensor([1, 2, 0, 1, 3]), randn(5).abs()

CASES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (torch.cov, (X,), {}),
    (torch.cov, (X[0],), {}),
    (torch.cov, (X,), {"correction": 0, "fweights": COUNTS, "aweights": WEIGHTS}),
    (torch.cov, (X,), {"correction": 2, "aweights": WEIGHTS}),
    (torch.cov, (X[:, :1],), {}),
    (torch.cov, (COUNTS.reshape(1, 5) + torch.arange(2)[:, None],), {"fweights": COUNTS}),
    (torch.corrcoef, (X,), {}),
    (torch.corrcoef, (X[0],), {}),
    (torch.narrow, (X, 1, torch.tensor(-3), 2), {}),
    (torch.narrow, (X, 0, 1, 2), {}),
    (torch.combinations, (X[0],), {"r": 3}),
    (torch.combinations, (X[0],), {"with_replacement": True}),
    (torch.combinations, (X[0],), {"r": 6}),
    (torch.combinations, (X[0],), {"r": 0}),
    (F.gaussian_nll_loss, (X, TARGET, VAR), {"full": True}),
    (F.gaussian_nll_loss, (X, TARGET, VAR[:, 0]), {"reduction": "sum"}),
    (F.gaussian_nll_loss, (X, TARGET, VAR, False, 0.5), {"reduction": "none"}),
    (F.gaussian_nll_loss, (X, TARGET, 0.5), {}),
]


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Value and gradients of the floating arguments."""
    leaves = [
        a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    ]
    out = function(*leaves, **kwargs)
    starts = [a for a in leaves if isinstance(a, Tensor) and a.requires_grad]
    if not (starts and out.requires_grad and out.numel()):
        return [out]
    weights = torch.arange(1.0, out.numel() + 1).reshape(out.shape)
    return [out, *torch.autograd.grad(out, starts, weights)]


@pytest.mark.filterwarnings("ignore:cov.*degrees of freedom")
@pytest.mark.parametrize(("function", "args", "kwargs"), CASES)
def test_values_and_gradients(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert rewritten(function) is not function
    got, want = run(rewritten(function), args, kwargs), run(function, args, kwargs)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_checks_that_need_no_value_stay() -> None:
    loss = rewritten(F.gaussian_nll_loss)
    with pytest.raises(ValueError, match="var is of incorrect size"):
        loss(X, TARGET, randn(3, 2))
    with pytest.raises(ValueError, match="median is not valid"):
        loss(X, TARGET, VAR, reduction="median")


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_with_running_statistics(affine: bool) -> None:
    x = randn(2, 3, 4)
    layer, other = (nn.InstanceNorm1d(3, affine=affine, track_running_stats=True) for _ in "ab")
    want = layer(x)
    mean, var = other.running_mean, other.running_var
    got = rewritten(F.instance_norm)(x, mean, var, other.weight, other.bias)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        [other.running_mean, other.running_var], [layer.running_mean, layer.running_var]
    )


def test_linear_cross_entropy_in_chunks() -> None:
    args = X, randn(7, 5), torch.tensor([6, 0, -100])
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    want = F.linear_cross_entropy(*args, options=options)
    torch.testing.assert_close(rewritten(F.linear_cross_entropy)(*args, options=options), want)


class Everything(nn.Module):
    """Each of the functions, as functions and as methods."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(5, track_running_stats=True)

    def forward(self, x: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        nll = F.gaussian_nll_loss(x, x, x.abs())
        pairs = torch.combinations(x[0])
        batch = self.norm(x.unsqueeze(-1).expand(3, 5, 2))
        return x.cov(), x.corrcoef(), x.narrow(1, start, 2), nll, pairs, batch


def test_they_export() -> None:
    model = Everything()
    traced = trace(model, (X, torch.tensor(1)))
    shapes = [traced.values[o.value].shape for o in traced.outputs]
    assert shapes == [(3, 3), (3, 3), (3, 2), (), (10, 2), (3, 5, 2)]
    updated = {s.name for s in traced.sources if s.value in {u[1] for u in traced.updates}}
    assert updated == {"everything__norm__running_mean", "everything__norm__running_var"}


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.RReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2.0
        self.activation(h)
        torch.rrelu_(h, 0.1, 0.2, True)
        return h


def test_a_random_leaky_relu_in_place_is_traced():
    traced = trace(_InPlace(), (X,))
    assert [n.op for n in traced.nodes if "rrelu" in n.op] == ["aten.rrelu.default"] * 2


@pytest.mark.parametrize("training", [True, False])
def test_rrelu_in_place_of_what_it_reads_has_its_gradient(training):
    class Slopes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.activation = nn.RReLU(0.25, 0.25, inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.activation(x * self.w).sum()

    x = torch.tensor([-1.0, 2.0, -3.0])
    Slopes().train(training)(x).backward()  # torch takes it
    traced = trace(Slopes().train(training), (x,))
    assert "aten.rrelu.default" in [node.op for node in traced.nodes]


class _Drawn(torch.nn.Module):
    def __init__(self, samples: int, method: bool) -> None:
        super().__init__()
        self.samples, self.method = samples, method

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.multinomial(self.samples) if self.method else torch.multinomial(x, self.samples)


@pytest.mark.parametrize("method", [False, True])
@pytest.mark.parametrize(("samples", "text"), [(0, "n_sample <= 0"), (4, "n_sample > prob_dist")])
def test_samples_that_there_are_not_are_refused(samples: int, text: str, method: bool) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=text):
        _Drawn(samples, method)(x)
    with pytest.raises(TraceError, match=text):
        trace(_Drawn(samples, method), (x,))
    assert trace(_Drawn(3, method), (x,)) is not None
