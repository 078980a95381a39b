"""Changes in place through every view of torch's, of tensors that lie in every way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from tests.sweeps.both_sides import Make, sweep_together
from tests.sweeps.tally import Tally

Tensor = torch.Tensor
INPUTS = {"x": torch.linspace(0.5, 1.5, 24).reshape(4, 6)}

BASES: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda h: h,
    "transposed": lambda h: h.t(),
    "columns first": lambda h: h.t().contiguous().t(),
    "later rows": lambda h: h[1:],
    "later columns": lambda h: h[:, 1:],
    "every other": lambda h: h[::2],
    "copied": lambda h: h.clone(),
}
"""From a compact tensor of 4 by 6 to the tensor of which a view is taken."""

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda t: t,
    "view": lambda t: t.view(-1),
    "reshape": lambda t: t.reshape(-1),
    "flatten": lambda t: t.flatten(),
    "unflatten": lambda t: t.unflatten(1, (1, -1)),
    "t": lambda t: t.t(),
    "permute": lambda t: t.permute(1, 0),
    "expand": lambda t: t[:1].expand(3, *t.shape[1:]),
    "expand of one": lambda t: t.unsqueeze(0).expand(1, *t.shape),
    "unfold": lambda t: t.unfold(1, 2, 2),
    "unfold with gaps": lambda t: t.unfold(0, 1, 2),
    "unfold with an end": lambda t: t.unfold(1, 1, 3),
    "unfold that overlaps": lambda t: t.unfold(1, 2, 1),
    "unfold twice": lambda t: t.unfold(0, 1, 1).unfold(1, 1, 2),
    "part of unfold": lambda t: t.unfold(1, 1, 2)[0],
    "as_strided": lambda t: t.as_strided((2, 2), (6, 1)),
    "as_strided from 1": lambda t: t.as_strided((2, 2), (5, 2), 1),
    "as_strided from its place": lambda t: t.as_strided((2,), t.stride()[:1], t.storage_offset()),
    "part of as_strided": lambda t: t.as_strided((2, 2), (6, 1))[1],
    "as_strided of a view": lambda t: t[1:].as_strided((2, 2), (6, 1)),
    "as_strided from 0": lambda t: t[1:].as_strided((2, 2), (6, 1), 0),
    "as_strided that overlaps": lambda t: t.as_strided((3, 2), (1, 1)),
    "diagonal": lambda t: t.diagonal(),
    "other diagonal": lambda t: t.diagonal(1),
    "narrow": lambda t: t.narrow(1, 1, 2),
    "select": lambda t: t.select(0, 1),
    "split": lambda t: t.split(1)[1],
    "chunk": lambda t: t.chunk(2, 1)[0],
    "unbind": lambda t: t.unbind(1)[2],
    "tensor_split": lambda t: t.tensor_split(2)[0],
    "slice": lambda t: t[::2, 1:],
    "one element": lambda t: t[1, 1],
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t[:1].squeeze(0),
    "movedim": lambda t: t.unsqueeze(0).movedim(0, 2),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "mT": lambda t: t.mT,
    "view_as": lambda t: t.view_as(t),
}

OPS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "mul_": lambda v, k: v.mul_(0.5),
    "add_": lambda v, k: v.add_(k),
    "zero_": lambda v, k: v.zero_(),
    # Of negative numbers: three steps of growing ones would grow the last digit, too.
    "exp_": lambda v, k: v.neg_().exp_(),
    "copy_": lambda v, k: v.copy_(v.detach() * k),
    "fill_": lambda v, k: v.fill_(k),
    "clamp_": lambda v, k: v.clamp_(max=1.0),
    "masked_fill_": lambda v, k: v.masked_fill_(v > 1.0, 0.25),
    "sub_": lambda v, k: v.sub_(v.detach().square(), alpha=0.5),
    "item": lambda v, k: v.__setitem__(..., k * 3.0),
}


class _Viewed(nn.Module):
    """Changes what a view shows, and reads the view and all that lies around it."""

    buffer: Tensor

    def __init__(
        self,
        base: Callable[[Tensor], Tensor],
        view: Callable[[Tensor], Tensor],
        change: Callable[[Tensor, Tensor], object],
        *,
        of_buffer: bool = False,
        first: bool = False,
    ) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.25, 1.25, 24).reshape(4, 6))
        self.k = nn.Parameter(torch.tensor(0.75))
        self.register_buffer("buffer", torch.linspace(0.0, 2.0, 24).reshape(4, 6))
        self.base, self.view, self.change = base, view, change
        self.of_buffer, self.first = of_buffer, first

    def forward(self, x: Tensor) -> Tensor:
        whole = self.buffer if self.of_buffer else self.w * x
        base = self.base(whole)
        view = self.view(base)
        if self.first:  # the view is taken before its base changes
            self.change(base, self.k.detach() if self.of_buffer else self.k)
        else:
            self.change(view, self.k.detach() if self.of_buffer else self.k)
        factor = self.w.mean() if self.of_buffer else 1.0
        return (whole.square().sum() + view.sum() * 0.5 + base.mean()) * factor


def _cases(**how: bool) -> dict[str, Make]:
    return {
        f"{base} | {view} | {op} {how or ''}": partial(
            _Viewed, BASES[base], VIEWS[view], OPS[op], **how
        )
        for base, view, op in itertools.product(BASES, VIEWS, OPS)
    }


def _by_view(cases: list[tuple[str, Make]]) -> dict[str, Make]:
    """In an order in which those that are refused lie side by side: views by strides."""
    return dict(sorted(cases, key=lambda case: case[0].split(" | ")[1]))


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_code")
def test_some_changes_through_views(tmp_path):
    tally = Tally("changes through views, a slice")
    cases = _cases()
    rows = (
        "whole | unfold with gaps | mul_ ",
        "whole | as_strided from 1 | add_ ",
        "transposed | unfold with an end | exp_ ",
        "later columns | as_strided | item ",
    )
    assert sweep_together(tally, {row: cases[row] for row in rows}, INPUTS, tmp_path) == 1
    tally.close(at_least=4)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_code")
@pytest.mark.parametrize("part", range(2))
def test_changes_through_views(tmp_path, part):
    tally = Tally(f"changes through views, part {part + 1} of 2")
    cases = list(_cases().items())
    sweep_together(tally, _by_view(cases[part * 7 :: 13]), INPUTS, tmp_path, lr=0.01)
    tally.close(at_least=183)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_code")
def test_changes_of_buffers_and_of_bases(tmp_path):
    tally = Tally("changes through views of buffers, and below views")
    cases = list({**_cases(of_buffer=True), **_cases(first=True)}.items())
    sweep_together(tally, _by_view(cases[::27]), INPUTS, tmp_path, lr=0.01)
    tally.close(at_least=172)
