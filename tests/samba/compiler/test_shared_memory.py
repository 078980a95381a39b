"""Tensors of a model that share memory: refused where torch changes one with the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samba.compiler.optimizers import refuse_shared_weights
from samba.tracer.errors import GradientError
from samba.tracer.shared_memory import SharedMemory
from tests.samba.refusals import line_of
from tests.tracing import trace

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Model(nn.Module):
    """Two layers, a count for each column, and tensors that are held otherwise."""

    counts: Tensor
    held: Tensor

    def __init__(self, prepare: Callable[[Any], None]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("counts", torch.zeros(4))
        prepare(self)

    def forward(self, x: Tensor) -> Tensor:
        self.counts.add_(1)
        y = self.second(self.first(x).tanh())
        return (y * self.held.sum()).square().sum()  # uses


def a_buffer_of_a_weight(m: Any) -> None:
    m.register_buffer("held", m.first.weight.data)


def an_attribute_of_a_weight(m: Any) -> None:
    m.held = m.first.weight.data[1:]


def a_part_of_a_buffer(m: Any) -> None:
    m.register_buffer("held", m.counts[1:3])


def an_attribute_of_a_buffer(m: Any) -> None:
    m.held = m.counts[2]


def tied_by_data(m: Any) -> None:
    m.second.weight.data = m.first.weight.data
    m.held = torch.ones(1)


def every_second_one(m: Any) -> None:
    m.held = m.counts[::2]


SHARED: dict[Callable[[Any], None], tuple[str, str]] = {
    a_buffer_of_a_weight: ("first.weight", "held"),
    an_attribute_of_a_weight: ("first.weight", "held"),
    a_part_of_a_buffer: ("counts", "held"),
    an_attribute_of_a_buffer: ("counts", "held"),
    tied_by_data: ("first.weight", "second.weight"),
    every_second_one: ("counts", "held"),
}


@pytest.mark.parametrize("prepare", list(SHARED), ids=lambda prepare: prepare.__name__)
def test_what_changes_with_another_tensor_is_refused(prepare: Callable[[Any], None]) -> None:
    model = Model(prepare)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SharedMemory, match="which the program changes, shares memory") as caught:
        refuse_shared_weights(trace(model, X), [optimizer])
    assert {caught.value.changes, caught.value.shares} == set(SHARED[prepare])
    assert caught.value.deviation == "shared-memory"


def parts_of_one_memory(m: Any) -> None:
    """As libraries lay out weights for a reduction; or columns, which lie in turns."""
    flat, turns = torch.linspace(0, 1, 16), torch.zeros(4, 4, 2)
    m.first.bias, m.second.bias = nn.Parameter(flat[:4]), nn.Parameter(flat[4:8])
    m.first.weight, m.second.weight = nn.Parameter(turns[..., 0]), nn.Parameter(turns[..., 1])
    m.held = flat[8:]


def the_same(m: Any) -> None:
    m.second.weight = m.first.weight
    m.register_buffer("held", m.counts)


def what_nothing_changes(m: Any) -> None:
    m.register_buffer("held", torch.ones(4))
    m.register_buffer("more", m.held[1:])


@pytest.mark.parametrize("prepare", [parts_of_one_memory, the_same, what_nothing_changes])
def test_what_does_not_change_with_another_is_taken(prepare: Callable[[Any], None]) -> None:
    model = Model(prepare)
    refuse_shared_weights(trace(model, X), [torch.optim.SGD(model.parameters(), lr=0.1)])


def test_weights_that_the_device_does_not_train_may_share_memory() -> None:
    refuse_shared_weights(trace(Model(tied_by_data), X), ())


def a_turned_weight(m: Any) -> None:
    m.held = m.first.weight.t()


def a_buffer_of_a_product(m: Any) -> None:
    m.register_buffer("held", m.first.weight * 2)


@pytest.mark.parametrize(
    ("prepare", "where"),
    [
        (a_turned_weight, line_of(__file__, "uses")),
        (a_buffer_of_a_product, "model model, held"),
    ],
)
def test_what_was_computed_from_a_weight_is_refused(
    prepare: Callable[[Any], None], where: str
) -> None:
    model = Model(prepare)
    with pytest.raises(GradientError, match=r"Compute it in forward\(\)") as caught:
        trace(model, X)
    assert caught.value.where == where
    assert caught.value.deviation == "kept-history"
