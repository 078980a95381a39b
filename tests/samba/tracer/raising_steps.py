"""Steps of a model, each of one line: of a weight, whole numbers and an input of three elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Steps = dict[str, Callable[..., Any]]

DIVISIONS: Steps = {
    "by zero": lambda w, i, x: w.sum() * (i // 0),
    "rest by zero": lambda w, i, x: w.sum() * (i % 0),
    "rest of a number": lambda w, i, x: w.sum() * torch.remainder(7, torch.tensor([1, 0, 2])),
    "cut by zero": lambda w, i, x: w.sum() * torch.div(i, 0, rounding_mode="trunc"),
    "fmod by zero": lambda w, i, x: w.sum() * torch.fmod(i, 0),
    "by a constant": lambda w, i, x: w.sum() * (i // torch.tensor([1, 0, 2])),
    "negative power": lambda w, i, x: w.sum() * i**-1,
}

EMPTY: Steps = {
    "largest": lambda w, i, x: w[:0].max(),
    "smallest": lambda w, i, x: w.sum() * x[:0].min(),
    "place of largest": lambda w, i, x: w.sum() * x[:0].argmax(),
    "largest along": lambda w, i, x: w[:0].reshape(2, 0).amax(1),
    "both ends": lambda w, i, x: w[:0].aminmax().max,
    "most frequent": lambda w, i, x: w.sum() * x[:0].mode().values,
    "largest norm": lambda w, i, x: torch.linalg.vector_norm(w[:0], float("inf")),
}

NO_GRADIENT: Steps = {
    "floor of quotient": lambda w, i, x: (w // x).sum(),
    "floor by number": lambda w, i, x: w.sum() + (w // 2.0).sum(),
    "step function": lambda w, i, x: (torch.heaviside(x, w) * w).sum(),
    "order of gamma": lambda w, i, x: torch.igamma(w, x).sum(),
    "rest by weight": lambda w, i, x: torch.remainder(7.0, w).sum(),
    "order of zeta": lambda w, i, x: torch.special.zeta(w, x).sum(),
}

WITH_GRADIENT: Steps = {
    "detached": lambda w, i, x: (w * (w.detach() // x)).sum(),
    "detached behind": lambda w, i, x: (w * (w // x).detach()).sum(),
    "of inputs": lambda w, i, x: (w * (x // 2.0) + i // 2).sum(),
    "argument of gamma": lambda w, i, x: torch.igamma(x, w.abs()).sum(),
    "by rounding": lambda w, i, x: torch.div(w, x, rounding_mode="floor").sum(),
}
