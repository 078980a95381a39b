"""What kernels refuse and the exporter passes on: types, casts, tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import samba
from samba import utils
from samba.tracer.errors import DtypeMismatch, ShapeMismatch, TraceError, UnsupportedOps
from tests.tracing import trace

L = torch.linalg


class Calling(torch.nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        *(L.det, torch.det, L.cholesky, L.qr, L.svdvals, L.eigh, L.lu, L.cond, torch.svd),
        *(F.pdist, lambda x: L.solve(x, x), lambda x: torch.cdist(x, x)),
        lambda x: torch.cdist(x.repeat(9, 1), x, p=1.0),
        *(lambda x: torch.cdist(x, x, p=1.0), lambda x: L.solve_triangular(x, x, upper=True)),
    ],
)
def test_linear_algebra_in_16_bits_is_refused_as_torch_does(function, kind):
    x = torch.eye(3, dtype=kind)
    with pytest.raises(NotImplementedError) as wanted:
        function(x)
    with pytest.raises(DtypeMismatch) as caught:
        trace(Calling(function), (x,))
    assert str(wanted.value).split('" ')[1] in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        *(L.matrix_norm, L.matrix_exp, lambda x: torch.cdist(x, x[:0])),
        lambda x: torch.cdist(x.repeat(9, 1), x),
        lambda x: torch.cdist(x, x.repeat(9, 1), 2.0),
        lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
    ],
)
def test_what_torch_computes_in_16_bits_is_taken(function):
    x = torch.eye(3, dtype=torch.bfloat16)
    function(x)
    trace(Calling(function), (x,))


def test_autocast_makes_them_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traced = trace(Calling(lambda x: torch.cdist(x @ x, x)), (torch.eye(3),))
    assert "aten.cdist.default" in [node.op for node in traced.nodes]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_bools_are_not_padded_with_what_is_there(mode):
    x = torch.ones(1, 1, 3, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        F.pad(x, (1, 1), mode)
    with pytest.raises(TraceError, match="not implemented for 'Bool'") as caught:
        trace(Calling(lambda x: F.pad(x, (1, 1), mode)), (x,))
    assert f"{__file__}:" in str(caught.value)


# -- module.to(...) in forward ---------------------------------------------------------


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.classifier = self.classifier.to(torch.float32)
        return self.classifier(x.float()).softmax(-1)


def test_a_move_that_changes_nothing_is_none() -> None:
    model = Router()
    before = nn.Module._apply
    traced = trace(model, torch.randn(2, 4))
    assert [s.path for s in traced.sources if s.path] == ["classifier.weight", "classifier.bias"]
    assert [node.op for node in traced.nodes] == ["aten.linear.default", "aten.softmax.int"]
    assert nn.Module._apply is before
    assert model.to(torch.float64).classifier.weight.dtype == torch.float64


def test_a_move_that_changes_a_dtype_is_refused() -> None:
    model = Router().to(torch.bfloat16)
    with pytest.raises(TraceError, match=r"weight from torch.bfloat16 to torch.float32") as caught:
        trace(model, torch.randn(2, 4))
    assert caught.value.where.startswith(f"{__file__}:")
    assert "module classifier" in caught.value.where
    assert model.classifier.weight.dtype == torch.bfloat16


# -- tensors without elements ----------------------------------------------------------


class _Call(torch.nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x)


_REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "largest of all": (lambda x: x.max(), "aten.max.default: max"),
    "largest of no row": (lambda x: x.max(0).values, "aten.max.dim: max"),
    "an index into no rows": (lambda x: x[torch.tensor([0])], "index is out of bounds"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_it_is_refused_with_its_line(name: str) -> None:
    compute, text = _REFUSED[name]
    with pytest.raises(ShapeMismatch, match=r"test_of_nothing.py:\d+") as caught:
        trace(_Call(compute), (torch.zeros(0, 3),))
    assert text in str(caught.value)
    with pytest.raises((RuntimeError, IndexError)):
        compute(torch.zeros(0, 3))


def test_what_torch_takes_is_traced_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    for compute in (lambda x: x.sum(), lambda x: x.max(1).values, lambda x: x.sort(0).values):
        assert trace(_Call(compute), (torch.zeros(0, 3),)) is not None
    assert torch.equal(torch.get_rng_state(), before)


class _Margins(torch.nn.Module):
    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        labels = label[:, None].expand(-1, 3)
        return tuple(
            loss(x, given, reduction=reduction)
            for reduction in ("mean", "sum")
            for loss, given in ((F.multi_margin_loss, label), (F.multilabel_margin_loss, labels))
        )


def test_margin_losses_of_no_rows_are_those_of_nothing(tmp_path: Path) -> None:
    """Torch returns memory that it has not written."""
    rows = samba.from_torch_tensor(torch.zeros(0, 3), name="x")
    labels = samba.from_torch_tensor(torch.zeros(0, dtype=torch.int64), name="label")
    model = samba.from_torch_model(_Margins())
    config = {"output_folder": str(tmp_path), "pef_name": "margins"}
    pef = samba.session.compile(model, (rows, labels), inference=True, config_dict=config)
    outputs = utils.trace_graph(model, (rows, labels), pef=pef)
    found = [samba.to_torch(t) for t in samba.session.run((rows, labels), outputs)]
    torch.testing.assert_close(
        torch.stack(found), torch.tensor([torch.nan, torch.nan, 0.0, 0.0]), equal_nan=True
    )


def test_pivots_are_not_made_up() -> None:
    """Torch's kernel looks at them even where it has nothing to solve."""
    factors, pivots, _ = torch.linalg.ldl_factor_ex(torch.eye(3))
    solve = torch.linalg.ldl_solve
    assert solve(factors, pivots, torch.zeros(3, 0)).shape == (3, 0)
    with pytest.raises(UnsupportedOps, match="linalg_ldl_solve"):
        trace(_Call(lambda x: solve(factors, pivots, x)), (torch.zeros(3, 0),))
