"""What follows from constants and unchanged buffers is known while ``forward`` is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.samba.tracer.branching import LABELS, Form, Model, X, batches, each, run
from tests.tracing import trace


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
