"""What Python sees of tensors in forward: strides, offsets and types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import samba
from samba import utils
from samba.errors import ArgumentError
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome

Tensor = torch.Tensor
ROWS = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4)
CHANNELS = ROWS.to(memory_format=torch.channels_last)
LATER = torch.cat((ROWS, ROWS))[1:]


class Seeing(torch.nn.Module):
    """Scales its input by what Python sees of it."""

    def __init__(self, see: Callable[[Seeing, Tensor], float]) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
        self.see = see

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w * self.see(self, x)


def named(x: Tensor) -> samba.SambaTensor:
    return samba.from_torch_tensor(x, name="x")


def loaded(see: Callable[[Seeing, Tensor], float], x: Tensor, folder) -> tuple[Seeing, object]:
    model = Seeing(see)
    samba.from_torch_model_(model)
    config = {"output_folder": str(folder), "pef_name": "seeing"}
    pef = samba.session.compile(model, named(x), inference=True, config_dict=config)
    return model, utils.trace_graph(model, named(x), pef=pef)


def _contiguous(_: Seeing, x: Tensor) -> float:
    return 2.0 if x.is_contiguous() else 3.0


def _stride(_: Seeing, x: Tensor) -> float:
    return float((x + 1).stride(1))


def _type(model: Seeing, x: Tensor) -> float:
    exact = type(x) is Tensor and type(x + 1) is Tensor and type(model.w) is torch.nn.Parameter
    names = isinstance(Tensor, type) and type(Tensor) is type(float), type("T", (), {}).__name__
    return 2.0 if exact and x.__class__ is Tensor and names == (False, "T") else 3.0


@pytest.mark.parametrize("x", [ROWS, CHANNELS, LATER])
@pytest.mark.parametrize("see", [_contiguous, _stride, _type])
def test_forward_sees_what_torch_shows(see, x, tmp_path):
    want = Seeing(see)(x)
    _, outputs = loaded(see, x, tmp_path)
    (got,) = samba.session.run(named(x), outputs)
    torch.testing.assert_close(samba.to_torch(got), want)


def test_an_input_that_lies_otherwise_is_refused_where_forward_asked(tmp_path):
    _, outputs = loaded(_contiguous, ROWS, tmp_path)
    samba.session.run(named(LATER), outputs)  # it has not asked for the offset
    with pytest.raises(ArgumentError, match=r"strides \(24, 1, 8, 2\)") as caught:
        samba.session.run(named(CHANNELS), outputs)
    assert caught.value.deviation == "traced-layout"
    assert f"{__file__}:" in str(caught.value)


def test_an_input_may_lie_as_it_will_where_forward_did_not_ask(tmp_path):
    _, outputs = loaded(_type, ROWS, tmp_path)
    (got,) = samba.session.run(named(CHANNELS), outputs)
    torch.testing.assert_close(samba.to_torch(got), 2 * ROWS)


class OfAnInput(torch.nn.Module):
    """Reads places of its input's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x.as_strided((2, 3), (1, 4), 2) * self.w).square().sum()


def test_a_view_by_strides_of_a_transposed_input_is_torchs(tmp_path):
    inputs = {"x": torch.linspace(-1, 1, 12).reshape(4, 3).t()}
    assert train_both(OfAnInput, inputs, tmp_path) == (Outcome.EQUAL, "")
