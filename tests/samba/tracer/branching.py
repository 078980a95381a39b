"""A model of any function with buffers, and batches, for tests of branches on values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pef_schema.program import Role
from samba.tracer.reference import run_reference
from samba.tracer.traced import Traced

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
