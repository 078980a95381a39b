"""Reductions over dimensions. Functions of torch under SambaFlow's paths."""

from __future__ import annotations

from torch import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    logsumexp,
    max,
    mean,
    median,
    min,
    norm,
    prod,
    std,
    sum,
    var,
)

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "logsumexp",
    "max",
    "mean",
    "median",
    "min",
    "norm",
    "prod",
    "std",
    "sum",
    "var",
]
