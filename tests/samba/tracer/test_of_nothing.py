"""What torch's kernels refuse of tensors without elements is refused while a model is traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from samba.tracer.errors import ShapeMismatch
from tests.tracing import trace


class _Call(torch.nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x)


_REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "largest of all": (lambda x: x.max(), "aten.max.default: max"),
    "largest of no row": (lambda x: x.max(0).values, "aten.max.dim: max"),
    "an index into no rows": (lambda x: x[torch.tensor([0])], "index is out of bounds"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_it_is_refused_with_its_line(name: str) -> None:
    compute, text = _REFUSED[name]
    with pytest.raises(ShapeMismatch, match=r"test_of_nothing.py:\d+") as caught:
        trace(_Call(compute), (torch.zeros(0, 3),))
    assert text in str(caught.value)
    with pytest.raises((RuntimeError, IndexError)):
        compute(torch.zeros(0, 3))


def test_what_torch_takes_is_traced_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    for compute in (lambda x: x.sum(), lambda x: x.max(1).values, lambda x: x.sort(0).values):
        assert trace(_Call(compute), (torch.zeros(0, 3),)) is not None
    assert torch.equal(torch.get_rng_state(), before)
