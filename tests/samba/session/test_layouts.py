"""What Python sees of tensors in forward: strides, offsets and types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import samba
from samba import utils
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from samba.tracer.errors import ShapeMismatch
from tests.samba.graphs import compiled as compiled_graphs
from tests.samba.session.loading import load
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome

Tensor = torch.Tensor
ROWS = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4)
CHANNELS = ROWS.to(memory_format=torch.channels_last)
LATER = torch.cat((ROWS, ROWS))[1:]


See = Callable[["Seeing", Tensor], float]


class Seeing(torch.nn.Module):
    """Scales its input by what Python sees of it."""

    def __init__(self, *see: See) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
        self.see = see

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * self.w * see(self, x) for see in self.see]


def named(x: Tensor) -> samba.SambaTensor:
    return samba.from_torch_tensor(x, name="x")


def loaded(see: See, x: Tensor, folder) -> tuple[samba.SambaTensor, ...]:
    return load(samba.from_torch_model_(Seeing(see)), named(x), folder, inference=True)


def _contiguous(_: Seeing, x: Tensor) -> float:
    return 2.0 if x.is_contiguous() else 3.0


def _stride(_: Seeing, x: Tensor) -> float:
    return float((x + 1).stride(1))


def _type(model: Seeing, x: Tensor) -> float:
    exact = type(x) is Tensor and type(x + 1) is Tensor and type(model.w) is torch.nn.Parameter
    names = isinstance(Tensor, type) and type(Tensor) is type(float), type("T", (), {}).__name__
    return 2.0 if exact and x.__class__ is Tensor and names == (False, "T") else 3.0


@pytest.mark.parametrize("x", [ROWS, CHANNELS, LATER])
def test_forward_sees_what_torch_shows(x, tmp_path):
    model = Seeing(_contiguous, _stride, _type)
    wanted = model(x)
    outputs = load(samba.from_torch_model_(model), named(x), tmp_path, inference=True)
    for got, want in zip(samba.session.run(named(x), outputs), wanted, strict=True):
        torch.testing.assert_close(samba.to_torch(got), want)


def test_an_input_that_lies_otherwise_is_refused_where_forward_asked(tmp_path):
    outputs = loaded(_contiguous, ROWS, tmp_path)
    samba.session.run(named(LATER), outputs)  # it has not asked for the offset
    with pytest.raises(ArgumentError, match=r"strides \(24, 1, 8, 2\)") as caught:
        samba.session.run(named(CHANNELS), outputs)
    assert caught.value.deviation == "traced-layout"
    assert f"{__file__}:" in str(caught.value)


def test_an_input_may_lie_as_it_will_where_forward_did_not_ask(tmp_path):
    outputs = loaded(_type, ROWS, tmp_path)
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


VIEWS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "input": lambda x, w, t: x.view(24) * w,
    "later": lambda x, w, t: (x * w).view(6, 4),
    "contiguous": lambda x, w, t: (x * w).contiguous().view(6, 4),
    "rows": lambda x, w, t: (x * w).view(1, 2, 12),
    "complex": lambda x, w, t: torch.view_as_complex(x.view(1, 2, 3, 2, 2)).abs() * w,
    "parameter": lambda x, w, t: x * w + t.view(6).sum(),
}


class Viewing(torch.nn.Module):
    """Has a view of what it makes of its input, or of a parameter."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
        self.t = torch.nn.Parameter(torch.ones(3, 2).t() if how == "parameter" else torch.ones(6))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return VIEWS[self.how](x, self.w, self.t)


def compiled(how: str, x: Tensor, folder) -> str:
    config = {"output_folder": str(folder), "pef_name": "viewing"}
    model = samba.from_torch_model_(Viewing(how))
    return samba.session.compile(model, named(x), inference=True, config_dict=config)


COMPATIBLE = "view size is not compatible with input tensor's size and stride"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        *(("input", COMPATIBLE), ("later", COMPATIBLE)),
        ("complex", "Tensor must have a last dimension with stride 1"),
    ],
)
def test_a_view_that_torch_refuses_is_refused_with_its_line(how, said, tmp_path):
    with pytest.raises(RuntimeError, match=said):
        Viewing(how)(CHANNELS)
    with pytest.raises(ShapeMismatch, match=said) as caught:
        compiled(how, CHANNELS, tmp_path)
    assert "x has strides (24, 1, 8, 2)" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


def test_a_view_of_a_transposed_parameter_is_refused(tmp_path):
    with pytest.raises(ShapeMismatch, match=COMPATIBLE) as caught:
        compiled("parameter", ROWS, tmp_path)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize("how", ["input", "later"])
def test_a_view_of_an_input_of_a_run_that_torch_refuses_is_refused(how, tmp_path):
    pef = compiled(how, ROWS, tmp_path)
    model = samba.from_torch_model_(Viewing(how))
    with pytest.raises(ShapeMismatch, match=COMPATIBLE):
        utils.trace_graph(model, named(CHANNELS), pef=pef)
    outputs = utils.trace_graph(model, named(ROWS), pef=pef)
    samba.session.run((named(LATER),), outputs)  # it lies row-major, only later
    with pytest.raises(ShapeMismatch, match=COMPATIBLE):
        samba.session.run((named(CHANNELS),), outputs)
    with pytest.raises(ShapeMismatch, match=COMPATIBLE):
        samba.session.run({"x": CHANNELS}, outputs)
    (got,) = samba.session.run((named(ROWS),), outputs)
    torch.testing.assert_close(samba.to_torch(got), ROWS.view(samba.to_torch(got).shape))


@pytest.mark.parametrize(
    ("how", "x"), [("contiguous", CHANNELS), ("rows", ROWS.expand(2, 2, 3, 4)[:1])]
)
def test_a_view_that_torch_takes_is_taken_however_an_input_lies(how, x, tmp_path):
    outputs = load(samba.from_torch_model_(Viewing(how)), named(ROWS), tmp_path, inference=True)
    (got,) = samba.session.run((named(x),), outputs)
    torch.testing.assert_close(samba.to_torch(got), Viewing(how)(x))


def test_a_graph_of_several_asks_for_its_views_too(tmp_path):
    x = named(ROWS)
    y = utils.trace_multigraph(Viewing("input"), x)
    samba.session.add_graph(FwdGraph(x, y, name="a"))
    samba.session.init_multigraph_runtime(compiled_graphs(tmp_path))
    samba.session.run(named(ROWS), graph_name="a")
    with pytest.raises(ShapeMismatch, match=COMPATIBLE):
        samba.session.run(named(CHANNELS), graph_name="a")


class Grouped(torch.nn.Module):
    """Calls the kernel of a group norm."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_group_norm(x, None, None, 2, 4, 6, 2, 1e-5)[0]


def test_the_kernel_of_group_norm_takes_what_lies_otherwise(tmp_path):
    x = torch.linspace(-1, 2, 48).square().reshape(2, 6, 4).transpose(1, 2)
    with pytest.raises(RuntimeError, match="is_contiguous"):
        Grouped()(x)
    outputs = load(Grouped(), named(x), tmp_path, inference=True)
    (got,) = samba.session.run((named(x),), outputs)
    torch.testing.assert_close(samba.to_torch(got), Grouped()(x.contiguous()))
