"""What torch's kernels refuse of tensors without elements is refused while a model is traced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import samba
from samba import utils
from samba.tracer.errors import ShapeMismatch, UnsupportedOps
from tests.tracing import trace


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
