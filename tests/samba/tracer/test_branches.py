"""Branches on values: which side a graph has, and checks that fail where torch takes the other."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samba.tracer.errors import DataDependentBranch, GradientError
from tests.samba.tracer.branching import LABELS, Form, Model, X, batches, each, run
from tests.samba.tracer.raising_forms import RAISING
from tests.tracing import trace

# -- one side only raises -----------------------------------------------------------


@each(RAISING)
def test_a_check_fails_exactly_where_torch_raises(form: Form) -> None:
    model = Model(form)
    traced = trace(model, (X, LABELS), inference=True)
    raised = 0
    for x, labels in batches():
        try:
            wanted = model(x, labels)
        except (ValueError, IndexError, AssertionError):
            wanted = None
        raised += wanted is None
        outputs, fails = run(traced, x, labels)
        assert fails is (wanted is None), (labels, fails)
        if wanted is not None:
            torch.testing.assert_close(outputs[0], wanted, equal_nan=True)
    assert 0 < raised < len(batches())


# -- whether numbers are finite -------------------------------------------------------


def detr(m: Any, x: Tensor, labels: Tensor) -> Any:
    if torch.isinf(x).any() or torch.isnan(x).any():
        limit = torch.finfo(x.dtype).max - 1000
        x = torch.clamp(x, min=-limit, max=limit)
    return x @ m.weight


def not_finite(m: Any, x: Tensor, labels: Tensor) -> Any:
    if not torch.isfinite(x).all():
        x = torch.nan_to_num(x)
    return x @ m.weight


def counted(m: Any, x: Tensor, labels: Tensor) -> Any:
    if torch.isnan(x).sum() > 0 or torch.isinf(x).sum().item() != 0:
        return x.sum() * 0
    return x @ m.weight


def by_itself(m: Any, x: Tensor, labels: Tensor) -> Any:
    bad = (x != x).any() | (x.abs() == math.inf).any()
    if bad:
        x = torch.zeros_like(x)
    return x @ m.weight


def kept_as_bool(m: Any, x: Tensor, labels: Tensor) -> Any:
    fine = bool(torch.logical_and(~torch.isnan(x).any(), (x.abs() < math.inf).all()))
    return x @ m.weight if fine else x * 0


def of_a_sum(m: Any, x: Tensor, labels: Tensor) -> Any:
    while torch.isnan(x.sum()) or not x.sum().isfinite():
        x = x * 0.5
    return x @ m.weight


def taken_out(m: Any, x: Tensor, labels: Tensor) -> Any:
    total = x.sum().item()
    if x.isnan().any().item() is True or total != total or x.isinf().any():
        return x * 0
    return x @ m.weight


def as_numbers(m: Any, x: Tensor, labels: Tensor) -> Any:
    if float(x.abs().max()) == math.inf or any([x[0].isnan().any(), x[1:].isnan().any()]):
        x = x * 0
    if not all(row.isfinite().all() for row in x) or not torch.equal(x, x):
        x = x * 0
    return x @ m.weight


FINITE = [as_numbers, taken_out, detr, not_finite, counted, by_itself, kept_as_bool, of_a_sum]


@each(FINITE)
def test_a_check_fails_exactly_where_numbers_are_not_finite(form: Form) -> None:
    model = Model(form)
    traced = trace(model, (X, LABELS), inference=True)
    seen = set()
    for x, labels in batches():
        outputs, fails = run(traced, x, labels)
        seen.add(fails)
        assert fails is not bool(torch.isfinite(x).all())
        if not fails:
            torch.testing.assert_close(outputs[0], model(x, labels))
    assert seen == {True, False}


# -- what is refused ---------------------------------------------------------------------


def other_values(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * (2 if labels.sum() > 3 else 1)


def finite_and_more(m: Any, x: Tensor, labels: Tensor) -> Any:
    if torch.isnan(x).any() | (labels.max() > 3):
        x = x * 2
    return x @ m.weight


def caught(m: Any, x: Tensor, labels: Tensor) -> Any:
    try:
        if (labels < 0).any():
            raise ValueError
    except ValueError:
        x = x * 2
    return x @ m.weight


def only_warns(m: Any, x: Tensor, labels: Tensor) -> Any:
    if (labels < 0).any():
        x = x * 2
    return x @ m.weight


def changed(m: Any, x: Tensor, labels: Tensor) -> Any:
    if m.count > 0:
        x = x * 2
    m.count.add_(1)
    return x @ m.weight


def changed_by_a_view(m: Any, x: Tensor, labels: Tensor) -> Any:
    part = m.statistics[1:]
    part.add_(1)
    return x @ m.weight * int(m.statistics[1])


def of_data(m: Any, x: Tensor, labels: Tensor) -> Any:
    kept = torch.zeros(3)
    view = kept[1:]
    kept.copy_(x[:, 0].detach())
    return x @ m.weight * int(view[0])


def drawn(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * int(torch.randint(3, ()))


def in_a_turn(m: Any, x: Tensor, labels: Tensor) -> Any:
    out = torch.zeros(3)
    for entry in (labels > 1).nonzero():
        if torch.isnan(x[entry]).any():
            raise ValueError
        out[entry] += x[entry].sum()
    return out.sum() * m.weight


def which_object(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * (2 if (labels.sum() > 3).item() is True else 1)


def which_type(m: Any, x: Tensor, labels: Tensor) -> Any:
    total = labels.sum().item()
    return x @ m.weight * (2 if total is not None and isinstance(total, int) else 1)


def which_objects(m: Any, x: Tensor, labels: Tensor) -> Any:
    for large in (labels > 3).tolist():
        x = x * (2 if large is True else 1)
    return x @ m.weight


REFUSED = [
    *(which_object, which_type, which_objects),
    *(other_values, finite_and_more, caught, only_warns, changed, changed_by_a_view, of_data),
    *(drawn, in_a_turn),
]


@each(REFUSED)
def test_other_branches_are_refused_with_their_line(form: Form) -> None:
    with pytest.raises(DataDependentBranch) as caught:
        trace(Model(form), (X, LABELS), inference=True)
    assert __file__ in caught.value.where


def any_of_several(m: Any, x: Tensor, labels: Tensor) -> Any:
    if not any([labels.min() >= 0, labels.max() < 3]):
        raise ValueError
    return x @ m.weight


def all_of_several(m: Any, x: Tensor, labels: Tensor) -> Any:
    if all(label > 3 for label in labels) or (m.strict and labels.max() > 9):
        raise ValueError
    return x @ m.weight


def some_and_more(m: Any, x: Tensor, labels: Tensor) -> Any:
    if any(label > 3 for label in labels) and labels.min() < 0:
        raise ValueError
    return x @ m.weight


def equal_lists(m: Any, x: Tensor, labels: Tensor) -> Any:
    if labels.tolist() == [1, 4, 2]:
        raise ValueError
    return x @ m.weight


def whole_number(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * (2 if int(labels.sum()) > 3 else 1)


def kept_number(m: Any, x: Tensor, labels: Tensor) -> Any:
    largest = int(labels.max().item())
    if largest > 3:
        raise ValueError
    return x @ m.weight


def multiplied(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * float(labels.sum())


def of_two_numbers(m: Any, x: Tensor, labels: Tensor) -> Any:
    if int(labels.min()) >= int(labels.max()):
        raise ValueError
    return x @ m.weight


def contained(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * (2 if 3 in labels else 1)


def one_of_numbers(m: Any, x: Tensor, labels: Tensor) -> Any:
    return x @ m.weight * (2 if labels[0] not in (1, 2) else 1)


INSTEAD: dict[Form, str] = {
    contained: "`3 in t` is (t == 3).any()",
    one_of_numbers: "`t in (1, 2)` is torch.isin(t, torch.tensor([1, 2]))",
    any_of_several: "torch.stack([...]).any() in place of any([...])",
    all_of_several: "torch.stack([...]).all() in place of all([...])",
    some_and_more: "torch.stack([...]).any() in place of any([...])",
    equal_lists: "torch.equal(t, torch.tensor([...])) in place of lists",
    whole_number: "t >= n in place of int(t) >= n",
    kept_number: "t >= n in place of int(t) >= n",
    multiplied: "x * t in place of x * float(t)",
    of_two_numbers: "t >= n in place of int(t) >= n",
}


@each(list(INSTEAD))
def test_a_refusal_says_what_to_write_instead(form: Form) -> None:
    with pytest.raises(DataDependentBranch, match=re.escape(INSTEAD[form])) as caught:
        trace(Model(form), (X, LABELS), inference=True)
    assert __file__ in caught.value.where and "depend" in caught.value.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_whole_number_of_no_finite_one_is_an_error(value: float) -> None:
    """As in torch, which raises an error of its own."""

    def form(m: Any, x: Tensor, labels: Tensor) -> Any:
        if int(x.sum()) > 99:
            raise ValueError
        return x @ m.weight

    model = Model(form)
    traced = trace(model, (X, LABELS), inference=True)
    assert not run(traced, X, LABELS)[1] and run(traced, torch.full_like(X, value), LABELS)[1]
    with pytest.raises((ValueError, OverflowError), match="to integer"):
        model(torch.full_like(X, value), LABELS)


def test_equality_of_other_shapes_is_known() -> None:
    def form(m: Any, x: Tensor, labels: Tensor) -> Any:
        return x @ m.weight * (2 if torch.equal(x, labels) or x.equal(x[:2]) else 1)

    model = Model(form)
    traced = trace(model, (X, LABELS), inference=True)
    torch.testing.assert_close(run(traced, X, LABELS)[0][0], model(X, LABELS))


class Squared(torch.autograd.Function):
    """A square whose gradient looks at what comes in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if not torch.isfinite(x).all():
            raise ValueError
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if not torch.isfinite(grads[0]).all():
            return grads[0] * 0
        return grads[0] * 2 * ctx.saved_tensors[0]


def test_a_backward_pass_has_no_checks() -> None:
    with pytest.raises(GradientError, match="cannot be traced"):
        trace(Model(lambda m, x, labels: Squared.apply(x @ m.weight).sum()), (X, LABELS))


def test_a_check_stays_beside_a_hook_and_within_a_checkpoint() -> None:
    def form(m: Any, x: Tensor, labels: Tensor) -> Any:
        def part(x: Tensor) -> Tensor:
            if torch.isnan(x).any():
                raise ValueError
            return (x @ m.weight).tanh()

        y = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
        y.register_hook(lambda grad: grad * 2)
        if labels.max() > 5:
            raise ValueError
        return y.sum()

    nodes = trace(Model(form), (X, LABELS)).nodes
    assert [n.op for n in nodes].count("samba.checked_branch") == 2


def test_targets_that_a_mask_selects_are_rows_for_ctc() -> None:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 7)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            mask = labels >= 0
            lengths = mask.sum(-1)
            scores = self.head(x).log_softmax(-1).transpose(0, 1)
            steps = torch.full((x.shape[0],), x.shape[1])
            return F.ctc_loss(scores, labels.masked_select(mask), steps, lengths, reduction="sum")

    x, model = torch.randn(3, 9, 4), Speech()
    labels = torch.tensor([[1, -100, 2, 3], [4, 5, -100, -100], [-100, 6, 1, 1]])
    traced = trace(model, (x, labels), inference=True)
    found = run(traced, x, labels)[0][0]
    torch.testing.assert_close(found, model(x, labels))
    other = torch.tensor([[-100, -100, 2, 3], [4, 5, 5, 2], [-100, 6, -100, 1]])
    torch.testing.assert_close(run(traced, x, other)[0][0], model(x, other))
