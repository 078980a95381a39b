"""Ways in which ``forward`` refuses labels: apart from tests, whose ``assert`` pytest rewrites."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def hubert(m: Any, x: Tensor, labels: Tensor) -> Any:
    if labels is not None and labels.max() >= m.classes:
        raise ValueError(f"Label values must be < {m.classes}, found {labels.max()}")
    return F.relu(x @ m.weight)


def lower_and_upper(m: Any, x: Tensor, labels: Tensor) -> Any:
    if labels.min() < 0 or labels.max() >= m.classes:
        raise IndexError("labels")
    return x @ m.weight


def negated(m: Any, x: Tensor, labels: Tensor) -> Any:
    if not (labels.min() >= 0 and not (labels >= m.classes).any()):
        raise ValueError
    return x @ m.weight


def both(m: Any, x: Tensor, labels: Tensor) -> Any:
    if labels.max() >= m.classes and labels.min() < 0:
        raise ValueError("both of them")
    return x @ m.weight


def with_python(m: Any, x: Tensor, labels: Tensor) -> Any:
    if labels.max() >= m.classes and m.strict and len(labels) == 3:
        raise ValueError
    if labels.min() < 0 and not m.strict:
        raise ValueError
    return x @ m.weight


def items(m: Any, x: Tensor, labels: Tensor) -> Any:
    largest, least = labels.max().item(), labels.min().item()
    if largest + 1 > m.classes or (least < 0 and largest > 3):
        message = f"{largest}"
        raise ValueError(message)
    return x @ m.weight


def truths(m: Any, x: Tensor, labels: Tensor) -> Any:
    if bool((labels >= m.classes).any()) or torch.any(labels < 0).item():
        raise ValueError
    return x @ m.weight


def functions(m: Any, x: Tensor, labels: Tensor) -> Any:
    torch._assert((labels >= 0).all(), "less than 0")
    if torch.is_nonzero((labels >= m.classes).sum()) or (labels > 9).any().is_nonzero():
        raise ValueError
    return x @ m.weight


def asserted(m: Any, x: Tensor, labels: Tensor) -> Any:
    assert (labels >= 0).all() and (labels < m.classes).all(), "labels"
    assert m.strict or (labels > 9).any()
    return x @ m.weight


def chained(m: Any, x: Tensor, labels: Tensor) -> Any:
    if not 0 <= labels.min() <= labels.max() < m.classes:
        raise ValueError
    if 3 < labels.max() < m.classes + 1 and labels.min() < 1:
        raise ValueError
    return x @ m.weight


def otherwise(m: Any, x: Tensor, labels: Tensor) -> Any:
    if (labels < m.classes).all():
        y = x @ m.weight
    else:
        raise ValueError
    return y


def returned_before(m: Any, x: Tensor, labels: Tensor) -> Any:
    if (labels >= 0).all():
        return x @ m.weight
    raise ValueError


def in_a_function(m: Any, x: Tensor, labels: Tensor) -> Any:
    def checked(values: Tensor, *, most: int) -> Tensor:
        if values.max() >= most:
            raise ValueError("too large")
        return values

    return x @ m.weight + checked(labels, most=m.classes).sum()


def nested(m: Any, x: Tensor, labels: Tensor) -> Any:
    if m.strict:
        x = x * 2
        if (labels < 0).any():
            if m.classes > 3:
                raise ValueError("less than 0")
            else:
                raise IndexError
    return x @ m.weight


def without_gradient(m: Any, x: Tensor, labels: Tensor) -> Any:
    with torch.no_grad():
        if (labels < 0).any():
            raise ValueError
    return x @ m.weight


def tried_otherwise(m: Any, x: Tensor, labels: Tensor) -> Any:
    try:
        if (labels < 0).any():
            raise ValueError
    except KeyError:
        x = x * 2
    return x @ m.weight


def equal(m: Any, x: Tensor, labels: Tensor) -> Any:
    inside = labels.clamp(0, m.classes - 1)
    if not torch.equal(labels, inside):
        raise ValueError
    if labels.equal(labels[:2]) or not inside.equal(labels):
        raise ValueError
    return x @ m.weight


def close(m: Any, x: Tensor, labels: Tensor) -> Any:
    inside = labels.clamp(0, m.classes - 1).float()
    assert m.strict and torch.allclose(labels.float(), inside, atol=0.5)
    if labels.max() > 9 or not inside.allclose(labels.float(), rtol=0.0, atol=0.5):
        raise ValueError
    return x @ m.weight


def one_by_one(m: Any, x: Tensor, labels: Tensor) -> Any:
    if m.strict and any([(labels >= m.classes).any(), (labels < 0).any()]):
        raise ValueError
    assert all(label >= 0 for label in labels) and all(n < m.classes for n in labels.tolist())
    return x @ m.weight


def lists(m: Any, x: Tensor, labels: Tensor) -> Any:
    if [n >= m.classes for n in labels.tolist()] != [False] * 3:
        raise ValueError
    assert m.strict and [label < 0 for label in labels] == [False] * 3
    return x @ m.weight


def one_of_several(m: Any, x: Tensor, labels: Tensor) -> Any:
    most, every = m.classes, labels.min() > -9
    if every and any(label >= most for label in labels):
        raise ValueError
    if not (labels.min() < -9 or all(label.item() >= -1 for label in labels)):
        raise ValueError
    if every and (bool((labels < 0).any()) or int(labels.max()) > float(labels.max() + 1)):
        raise ValueError
    assert not every or torch.equal(labels, labels.abs())
    return x @ m.weight


def whole_numbers(m: Any, x: Tensor, labels: Tensor) -> Any:
    if int(labels.max()) >= m.classes or int(labels.min()) < 0:
        raise ValueError
    assert 0 <= int(labels.min()) <= m.classes + len(labels)
    assert len(labels) > 2 and m.classes > int(labels.max().item())
    if int((labels.max() + 1) * 0.5) == 3 or int((labels == 7).any()):
        raise ValueError
    return x @ m.weight


def floats(m: Any, x: Tensor, labels: Tensor) -> Any:
    if not float("-inf") < float(labels.max() * 0.5) <= (m.classes - 1) / 2:
        raise ValueError
    assert float(labels.min()) > -0.5 and float(labels.min().item()) != -1
    return x @ m.weight


RAISING = [
    *(hubert, lower_and_upper, negated, both, with_python, items, truths, functions, asserted),
    *(chained, otherwise, returned_before, in_a_function, nested, without_gradient),
    *(tried_otherwise, equal, close, one_by_one, lists, one_of_several),
    *(whole_numbers, floats),
]
