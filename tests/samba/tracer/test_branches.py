"""Branches on values: which side a graph has, and checks that fail where torch takes the other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pef_schema.program import Role
from samba.tracer.errors import DataDependentBranch, GradientError
from samba.tracer.reference import run_reference
from samba.tracer.traced import Traced
from tests.samba.tracer.raising_forms import RAISING
from tests.tracing import trace

Form = Callable[[Any, Tensor, Tensor], Any]

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([1, 4, 2])


class Model(nn.Module):
    """A weight (4, 6), some buffers, and a function of them, a batch and labels."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(2)))
        self.strict, self.classes = True, 5
        self.register_buffer("keep", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("size", torch.tensor(2))
        self.register_buffer("sizes", torch.tensor([1, 3]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("statistics", torch.zeros(2))
        self.places = torch.tensor([True, False, True])
        self.form = form

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return self.form(self, x, labels)


def run(traced: Traced, x: Tensor, labels: Tensor) -> tuple[list[Tensor], bool]:
    """Outputs of a graph, run by torch, and whether one of its checks fails."""
    given = iter((x, labels))
    sources = {}
    for source in traced.sources:
        tensor = next(given) if source.role is Role.INPUT else source.tensor
        sources[source.value] = torch.zeros((), dtype=torch.bool) if tensor is None else tensor
    env = run_reference(traced.graph(), {k: v.detach().clone() for k, v in sources.items()})
    checks = {s.value for s in traced.sources if s.role is Role.METRIC}
    failed = any(bool(env[new]) for new, old in traced.updates if old in checks)
    return [env[o.value] for o in traced.outputs], failed


FAST = frozenset(
    {
        *("hubert", "with_python", "items", "chained", "detr", "finite_and_more", "caught"),
        *("changed_by_a_view", "numbers", "masks", "equal", "one_by_one", "one_of_several"),
        *("lists", "equal_lists", "whole_numbers", "as_numbers", "any_of_several", "kept_number"),
        "contained",
    }
)
"""Forms that ``make test`` tries; ``make test-all`` tries the others, too."""


def each(forms: list[Form]) -> pytest.MarkDecorator:
    """A parameter for each form."""
    return pytest.mark.parametrize(
        "form",
        [
            pytest.param(f, id=f.__name__, marks=() if f.__name__ in FAST else pytest.mark.slow)
            for f in forms
        ],
    )


def batches() -> list[tuple[Tensor, Tensor]]:
    """Batches of which some have labels out of range, or numbers that are not finite."""
    found, generator = [], torch.Generator().manual_seed(5)
    for n in range(14):
        x = torch.randn(3, 4, generator=generator)
        labels = torch.randint(-1 if n % 3 else 0, 6 if n % 2 else 5, (3,), generator=generator)
        if n % 4 == 3:
            x[n % 3, n % 4] = (math.inf, -math.inf, math.nan)[n % 3]
        found.append((x, labels))
    return [*found, (X, torch.tensor([-1, 5, 2])), (X, torch.tensor([4, 3, 0]))]


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


# -- what follows from constants -------------------------------------------------------------


def numbers(m: Any, x: Tensor, labels: Tensor) -> Any:
    y = x @ m.weight
    if m.size > 1 and m.sizes.sum() != 3:
        y = y * 2
    for number in range(m.size):
        y = y + number
    for size in m.sizes.tolist():
        y = y * size
    last = m.sizes[1] + m.size - 1
    return y[:, : int(last)].sum() * float(m.size) + y[..., :last].sum() * m.sizes.max().item()


def sizes(m: Any, x: Tensor, labels: Tensor) -> Any:
    y = F.pad(x, (m.size, m.sizes[0]))
    return y.reshape(m.sizes[1], -1).expand(m.size, m.sizes[1], -1) + torch.arange(m.size + 5)


def masks(m: Any, x: Tensor, labels: Tensor) -> Any:
    y = x @ m.weight
    a, b = y[:, m.keep], y[m.places]
    c, d = torch.masked_select(y, m.keep), y[torch.tensor([True, False, True])]
    e, f = y[[True, False, True]], y[np.array([True, False, True])]
    rows, columns = torch.where(m.keep[None] & m.places[:, None])
    total = a.cumsum(1).sum() + b.exp().sum() + c.cumsum(0).sum() + (d * e * f).sum()
    return total + (y[rows, columns] * torch.arange(len(rows))).sum()


def written(m: Any, x: Tensor, labels: Tensor) -> Any:
    y = x @ m.weight
    y[:, m.keep] = y[:, m.keep].flip(1)
    y[m.places] = torch.arange(12.0).reshape(2, 6)
    y[:, ~m.keep] = 0.5
    y[m.places[:, None] & m.keep] = torch.arange(8.0)
    return y


def lists(m: Any, x: Tensor, labels: Tensor) -> Any:
    y = x @ m.weight
    places = m.keep.nonzero().squeeze(1)
    places += 0  # what nonzero() gives is the caller's
    for place in m.places.nonzero():
        y = y + x[place].sum()
    repeated = y[:, :2].repeat_interleave(m.sizes, 1) if len(places) == 4 else y
    return y[:, places].sum() + torch.unique(m.sizes).sum() + repeated.cumsum(1).sum()


def views_of_known(m: Any, x: Tensor, labels: Tensor) -> Any:
    kept = torch.zeros(3)
    view = kept[1:]
    kept.add_(2)
    first = int(view[0])
    kept.copy_(x[:, 0].detach())
    return x @ m.weight * first


KNOWN = [numbers, sizes, masks, written, lists, views_of_known]


@each(KNOWN)
def test_what_follows_from_constants_and_unchanged_buffers_is_torchs(form: Form) -> None:
    model = Model(form)
    traced = trace(model, (X, LABELS), inference=True)
    for x, labels in batches()[:3]:
        outputs, fails = run(traced, x, labels)
        assert not fails
        torch.testing.assert_close(outputs[0], model(x, labels))


def test_known_buffers_are_named() -> None:
    assert [path for path, _ in trace(Model(numbers), (X, LABELS)).known] == ["size", "sizes"]


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
