"""Masks as indices whose sizes, or whose values, do not fit."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import pytest
import torch

from samba.tracer.errors import DtypeMismatch, ShapeMismatch
from tests.tracing import trace

Tensor = torch.Tensor


class Changing(torch.nn.Module):
    """Changes a copy of its input where a mask says so."""

    def __init__(self, change: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x.clone()
        result = self.change(x, mask)
        return result if isinstance(result, Tensor) else x


def _set(x: Tensor, mask: Tensor) -> None:
    x[mask] = 1.0


def _set_columns(x: Tensor, mask: Tensor) -> None:
    x[:, mask] = 1.0


def _put(x: Tensor, mask: Tensor) -> Tensor:
    return x.index_put((mask,), torch.ones(()))


def _add(x: Tensor, mask: Tensor) -> Tensor:
    return x.index_put((mask,), torch.ones(()), accumulate=True)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8])
@pytest.mark.parametrize(
    ("change", "shape"),
    [(_set, (3,)), (_set, (4, 2)), (_put, (1, 3)), (_add, (1,)), (_set_columns, (4,))],
)
def test_a_mask_of_other_sizes_is_refused_as_torch_does(change, shape, kind):
    x, mask = torch.zeros(4, 3), torch.ones(shape, dtype=kind)
    with warnings.catch_warnings(), pytest.raises(IndexError) as wanted:
        warnings.simplefilter("ignore")  # torch would have bools
        Changing(change)(x, mask)
    with pytest.raises(ShapeMismatch) as caught:
        trace(Changing(change), (x, mask))
    assert str(wanted.value) in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize(("change", "shape"), [(_set, (4,)), (_add, (4, 3)), (_set_columns, (3,))])
def test_a_mask_that_fits_is_taken(change, shape, caplog):
    caplog.set_level(logging.WARNING)
    trace(Changing(change), (torch.zeros(4, 3), torch.ones(shape, dtype=torch.bool)))
    assert not caplog.records


def test_bytes_set_no_single_value():
    x, mask = torch.zeros(4, 3), torch.ones(4, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="masked_fill_ only supports boolean masks"):
        Changing(_set)(x, mask)
    with pytest.raises(DtypeMismatch, match="masked_fill_ only supports boolean masks"):
        trace(Changing(_set), (x, mask))


def _rows(x: Tensor, mask: Tensor) -> None:
    x[mask] = torch.ones(2, 3)


def _too_many(x: Tensor, mask: Tensor) -> None:
    x[mask] = torch.ones(5, 3)


def _scattered(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_scatter(mask[:, None], torch.ones(6))


@pytest.mark.parametrize("change", [_rows, _scattered])
def test_values_for_the_entries_of_a_mask_are_told(change, caplog):
    caplog.set_level(logging.WARNING)
    trace(Changing(change), (torch.zeros(4, 3), torch.ones(4, dtype=torch.bool)))
    (record,) = caplog.records
    assert "[deviation: unchecked-index]" in record.getMessage()
    assert f"{__file__}:" in record.getMessage()


def test_more_values_than_a_mask_has_entries_are_refused():
    with pytest.raises(ShapeMismatch, match="cannot be broadcast to indexing result"):
        trace(Changing(_too_many), (torch.zeros(4, 3), torch.ones(4, dtype=torch.bool)))
