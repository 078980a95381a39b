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


RAISING = [
    *(hubert, lower_and_upper, negated, both, with_python, items, truths, functions, asserted),
    *(chained, otherwise, returned_before, in_a_function, nested, without_gradient),
    tried_otherwise,
]
