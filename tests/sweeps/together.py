"""Many small models trained as one, so that a sweep costs few compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.sweeps.both_sides import Tensors, train_both
from tests.sweeps.tally import Outcome, Tally

Make = Callable[[], nn.Module]


class _Together(nn.Module):
    def __init__(self, cases: list[nn.Module]) -> None:
        super().__init__()
        self.cases = nn.ModuleList(cases)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([case(**inputs) for case in self.cases]).sum()


def sweep_together(
    tally: Tally,
    cases: Mapping[str, Make],
    inputs: Tensors,
    folder: Path,
    *,
    size: int = 24,
    **how: Any,
) -> None:
    """Count the outcomes of many models, each of which returns a loss.

    Those that torch trains are trained several at a time; each of these is equal if all are. Those
    that torch refuses, and all of a batch that is not equal, are trained alone.

    Args:
        tally: Where to count.
        cases: Makes the models, by name.
        inputs: What all of them take.
        folder: Where PEFs go.
        size: Models of a batch.
        how: As for :func:`train_both`.
    """
    together = [name for name, make in cases.items() if _trains(make, inputs)]
    alone = [name for name in cases if name not in set(together)]
    for start in range(0, len(together), size):
        names = together[start : start + size]
        outcome, _ = train_both(
            lambda names=names: _Together([cases[name]() for name in names]), inputs, folder, **how
        )
        if outcome is Outcome.EQUAL:
            for name in names:
                tally.add(name, outcome)
        else:
            alone += names
    for name in alone:
        tally.add(name, *train_both(cases[name], inputs, folder, **how))


def _trains(make: Make, inputs: Tensors) -> bool:
    """Whether torch runs two steps."""
    torch.manual_seed(0)
    model = make()
    try:
        for _ in range(2):
            model(**inputs).backward()
    except Exception:
        return False
    return True
