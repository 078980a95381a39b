"""What kernels refuse and the exporter passes on: types, casts, masks, sizes, empty tensors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import samba
from emulator.errors import IndexOutOfRange
from pef_schema.errors import SambaError
from samba.tracer.errors import DtypeMismatch, ShapeMismatch, TraceError, UnsupportedOps
from tests.samba.session.loading import load
from tests.samba.worlds import named
from tests.tracing import trace

L = torch.linalg


class Calling(torch.nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def _of_default_type(x: Tensor) -> Tensor:
    """Whole numbers and no numbers at all, of which torch makes some of its default type."""
    count = (x > 0).sum()
    made = torch.full((4,), 0.1) + torch.linspace(0, 1, 4) + torch.arange(4).sqrt()
    return x * made + count / 3 + torch.arange(4) * 0.1 + torch.arange(4).sigmoid()


def test_a_default_type_holds_for_what_names_none(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.linspace(-1, 1, 4)
        model, given = Calling(_of_default_type), samba.from_torch_tensor(x, name="x")
        outputs = load(model, given, tmp_path, inference=True)
        (found,) = samba.session.run(given, outputs)
        torch.testing.assert_close(samba.to_torch(found), model(x), rtol=1e-14, atol=1e-14)
    finally:
        torch.set_default_dtype(torch.float32)
        samba.session.reset()


@pytest.mark.parametrize(
    "kind", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
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


_REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "largest of all": (lambda x: x.max(), "aten.max.default: max"),
    "largest of no row": (lambda x: x.max(0).values, "aten.max.dim: max"),
    "an index into no rows": (lambda x: x[torch.tensor([0])], "index is out of bounds"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_it_is_refused_with_its_line(name: str) -> None:
    compute, text = _REFUSED[name]
    with pytest.raises(ShapeMismatch, match=r"test_operand_types.py:\d+") as caught:
        trace(Calling(compute), (torch.zeros(0, 3),))
    assert text in str(caught.value)
    with pytest.raises((RuntimeError, IndexError)):
        compute(torch.zeros(0, 3))


def test_what_torch_takes_is_traced_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    for compute in (lambda x: x.sum(), lambda x: x.max(1).values, lambda x: x.sort(0).values):
        assert trace(Calling(compute), (torch.zeros(0, 3),)) is not None
    assert torch.equal(torch.get_rng_state(), before)


class _Margins(torch.nn.Module):
    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        labels = label[:, None].expand(-1, 3)
        return tuple(
            loss(x, given, reduction=reduction)
            for reduction in ("mean", "sum")
            for loss, given in ((F.multi_margin_loss, label), (F.multilabel_margin_loss, labels))
        )


def loaded(model: nn.Module, given: dict[str, Tensor], folder: Path) -> tuple[Any, ...]:
    """Compile a model for inference and load it; returns its outputs."""
    return load(samba.from_torch_model_(model), named(given), folder, inference=True)


def test_margin_losses_of_no_rows_are_those_of_nothing(tmp_path: Path) -> None:
    """Torch returns memory that it has not written."""
    given = {"x": torch.zeros(0, 3), "label": torch.zeros(0, dtype=torch.int64)}
    outputs = loaded(_Margins(), given, tmp_path)
    found = [samba.to_torch(t) for t in samba.session.run(named(given), outputs)]
    torch.testing.assert_close(
        torch.stack(found), torch.tensor([torch.nan, torch.nan, 0.0, 0.0]), equal_nan=True
    )


def test_pivots_are_not_made_up() -> None:
    """Torch's kernel looks at them even where it has nothing to solve."""
    factors, pivots, _ = torch.linalg.ldl_factor_ex(torch.eye(3))
    solve = torch.linalg.ldl_solve
    assert solve(factors, pivots, torch.zeros(3, 0)).shape == (3, 0)
    with pytest.raises(UnsupportedOps, match="linalg_ldl_solve"):
        trace(Calling(lambda x: solve(factors, pivots, x)), (torch.zeros(3, 0),))


# -- masks as indices ------------------------------------------------------------------


class Changing(torch.nn.Module):
    """Changes a copy of its input where a mask says so."""

    def __init__(self, change: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x.clone()
        result = self.change(x, mask)
        return result if isinstance(result, Tensor) else x


def _set(x: Tensor, mask: Tensor) -> None:
    x[mask] = 1.0


def _set_columns(x: Tensor, mask: Tensor) -> None:
    x[:, mask] = 1.0


def _put(x: Tensor, mask: Tensor) -> Tensor:
    return x.index_put((mask,), torch.ones(()))


def _add(x: Tensor, mask: Tensor) -> Tensor:
    return x.index_put((mask,), torch.ones(()), accumulate=True)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8])
@pytest.mark.parametrize(
    ("change", "shape"),
    [(_set, (3,)), (_set, (4, 2)), (_put, (1, 3)), (_add, (1,)), (_set_columns, (4,))],
)
def test_a_mask_of_other_sizes_is_refused_as_torch_does(change, shape, kind):
    x, mask = torch.zeros(4, 3), torch.ones(shape, dtype=kind)
    with warnings.catch_warnings(), pytest.raises(IndexError) as wanted:
        warnings.simplefilter("ignore")  # torch would have bools
        Changing(change)(x, mask)
    with pytest.raises(ShapeMismatch) as caught:
        trace(Changing(change), (x, mask))
    assert str(wanted.value) in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize(("change", "shape"), [(_set, (4,)), (_add, (4, 3)), (_set_columns, (3,))])
def test_a_mask_that_fits_is_taken(change, shape, caplog):
    caplog.set_level(logging.WARNING)
    trace(Changing(change), (torch.zeros(4, 3), torch.ones(shape, dtype=torch.bool)))
    assert not caplog.records


def test_bytes_set_no_single_value():
    x, mask = torch.zeros(4, 3), torch.ones(4, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="masked_fill_ only supports boolean masks"):
        Changing(_set)(x, mask)
    with pytest.raises(DtypeMismatch, match="masked_fill_ only supports boolean masks"):
        trace(Changing(_set), (x, mask))


def _rows(x: Tensor, mask: Tensor) -> None:
    x[mask] = torch.ones(2, 3)


def _too_many(x: Tensor, mask: Tensor) -> None:
    x[mask] = torch.ones(5, 3)


def _scattered(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_scatter(mask[:, None], torch.ones(6))


@pytest.mark.parametrize("change", [_rows, _scattered])
def test_values_for_the_entries_of_a_mask_are_told(change, caplog):
    caplog.set_level(logging.WARNING)
    trace(Changing(change), (torch.zeros(4, 3), torch.ones(4, dtype=torch.bool)))
    (record,) = caplog.records
    assert "[deviation: unchecked-index]" in record.getMessage()
    assert f"{__file__}:" in record.getMessage()


def test_more_values_than_a_mask_has_entries_are_refused():
    with pytest.raises(ShapeMismatch, match="cannot be broadcast to indexing result"):
        trace(Changing(_too_many), (torch.zeros(4, 3), torch.ones(4, dtype=torch.bool)))


# -- arguments of ctc_loss -------------------------------------------------------------


ROWS = torch.ones(3, 2, dtype=torch.int64)
SCORES = torch.zeros(6, 3, 5)


class Ctc(torch.nn.Module):
    def __init__(self, **changed: object) -> None:
        super().__init__()
        usual = {"targets": ROWS, "input_lengths": [6, 5, 4], "target_lengths": [2, 1, 0]}
        self.given = {**usual, **changed}

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        given: dict[str, Any] = self.given
        return F.ctc_loss(scores.log_softmax(-1), **given)


class OfTensors(torch.nn.Module):
    def forward(
        self,
        scores: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
    ) -> torch.Tensor:
        return F.ctc_loss(scores.log_softmax(-1), targets, input_lengths, target_lengths)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "input lengths of fewer": ({"input_lengths": [6]}, "input_lengths must be of size batch_size"),
    "target lengths of fewer": (
        {"input_lengths": torch.tensor([6, 6, 6]), "target_lengths": torch.tensor([2])},
        "target_lengths must be of size batch_size",
    ),
    "more time than there is": ({"input_lengths": [7, 6, 6]}, "at most 6, but got value 7"),
    "less than none": ({"input_lengths": [6, 6, -1]}, "at least 0, but got value -1"),
    "more labels than there are": ({"target_lengths": [3, 2, 2]}, "size at least 3"),
    "labels left over": ({"targets": ROWS.reshape(-1)}, "to have size 3 at dimension 0"),
    "rows of fewer": ({"targets": ROWS[:1]}, "to have size 3 at dimension 0"),
    "no such blank": ({"blank": 5}, "blank must be in label range"),
    "lengths that are not whole numbers": (
        {"input_lengths": torch.full((3,), 6.0), "target_lengths": torch.full((3,), 2.0)},
        "must be integral",
    ),
    "lengths that are bools": (
        {"input_lengths": torch.ones(3) > 0, "target_lengths": torch.ones(3) > 0},
        "must be integral",
    ),
}


OTHER_KINDS: list[dict[str, object]] = [
    {"target_lengths": torch.tensor([2, 1, 0])},
    {"input_lengths": None, "target_lengths": None},
    {"input_lengths": 6, "target_lengths": 2},
    {"input_lengths": [6.0, 5.0, 4.0]},
    {"targets": ROWS.tolist()},
    {"input_lengths": [True, True, True]},
    {"blank": 0.5},
    {"blank": True},
    {"blank": "a"},
    {"zero_infinity": 1},
    {"zero_infinity": "yes"},
]


@pytest.mark.parametrize("changed", OTHER_KINDS, ids=str)
def test_arguments_of_other_kinds_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        Ctc(**changed)(SCORES)
    with pytest.raises(SambaError, match=r"test_operand_types.py:\d+ .*TypeError: ctc_loss"):
        trace(Ctc(**changed), (SCORES,))


def test_numbers_of_numpy_are_whole_numbers() -> None:
    model = Ctc(blank=np.int64(0), input_lengths=[np.int64(6), 5, 4])
    usual = trace(Ctc(), (SCORES,)).graph()
    assert trace(model, (SCORES,)).graph().nodes == usual.nodes


@pytest.mark.parametrize("reduction", ["avg", None])
def test_an_unknown_reduction_is_refused(reduction: object) -> None:
    with pytest.raises(ValueError, match="is not a valid value for reduction") as wanted:
        Ctc(reduction=reduction)(SCORES)
    with pytest.raises(SambaError, match=r"test_operand_types.py:\d+") as caught:
        trace(Ctc(reduction=reduction), (SCORES,))
    assert str(wanted.value) in str(caught.value)


@pytest.mark.parametrize("scores", [torch.zeros(5), torch.zeros(6, 3, 5).long()])
def test_scores_of_other_dimensions_and_types_are_refused(scores: Tensor) -> None:
    given: dict[str, Any] = {"targets": ROWS[:1], "input_lengths": [1], "target_lengths": [1]}
    if scores.dim() == 3:
        given = Ctc().given
    with pytest.raises(RuntimeError):  # of which torch's NotImplementedError is one
        F.ctc_loss(scores, **given)
    with pytest.raises(SambaError, match=r"test_operand_types.py:\d+"):
        trace(Calling(lambda x: F.ctc_loss(x, **given)), (scores,))


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_and_numbers_are_refused_when_the_model_is_traced(name: str) -> None:
    changed, text = REFUSED[name]
    with pytest.raises(RuntimeError, match=text):
        Ctc(**changed)(SCORES)
    with pytest.raises(SambaError, match=text):
        trace(Ctc(**changed), (SCORES,))


def test_lengths_and_labels_that_a_run_is_given_are_looked_at(tmp_path: Path) -> None:
    given = {
        "scores": SCORES,
        "targets": torch.ones(3, dtype=torch.int64),
        "input_lengths": torch.tensor([6, 5, 4]),
        "target_lengths": torch.tensor([2, 1, 0]),
    }
    outputs = loaded(OfTensors(), given, tmp_path)
    (loss,) = samba.session.run(named(given), outputs)
    torch.testing.assert_close(samba.to_torch(loss), OfTensors()(**given))
    for name, values, allowed in (
        ("targets", [5, 1, 1], "0 to 4"),
        ("input_lengths", [7, 6, 6], "0 to 6"),
        ("target_lengths", [4, 0, 0], "0 to 3"),
    ):
        with pytest.raises(IndexOutOfRange, match=f"input {name} holds .* it must be {allowed}"):
            samba.session.run(named(given | {name: torch.tensor(values)}), outputs)
