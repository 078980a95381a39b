"""Keywords of forward that are no tensors: constants of the graph, as torch.export takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba import utils
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from samba.session.check_pef import GraphMismatch
from samba.session.feeding import UnknownInput
from samba.tracer.inputs import InputError
from tests.samba.worlds import close


class Options(nn.Module):
    """A scale, a switch, a mode and a container with a number, as language models take them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 4)

    def forward(
        self,
        x: torch.Tensor,
        *,
        scale: float = 1.0,
        use_cache: bool = False,
        mode: str = "sum",
        past: Any = None,
    ) -> torch.Tensor:
        y = self.layer(x) * scale
        if use_cache:
            y = y + past[0] * past[1]
        return y.sum() if mode == "sum" else y.mean()


def keywords() -> dict[str, Any]:
    torch.manual_seed(4)
    x, past = torch.randn(2, 4), torch.randn(2, 4)
    return {
        "x": samba.from_torch_tensor(x, name="x"),
        "scale": 2.5,
        "use_cache": True,
        "mode": "mean",
        "past": (samba.from_torch_tensor(past, name="past"), 2),
    }


@pytest.fixture
def loaded(tmp_path):
    samba.session.reset()
    model = Options()
    samba.from_torch_model_(model)
    config = {"output_folder": str(tmp_path), "pef_name": "options"}
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    pef = samba.session.compile(model, keywords(), optimizer, name="options", config_dict=config)
    outputs = utils.trace_graph(model, keywords(), optimizer, pef=pef)
    yield model, outputs
    samba.session.reset()


def test_a_keyword_that_is_no_tensor_is_a_constant_of_the_graph(loaded):
    model, outputs = loaded
    twin = Options()
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    tensors = keywords()
    past = tensors["past"][0]
    for given in (tensors, {"x": tensors["x"], "past": (past, 2)}, (tensors["x"], past)):
        optimizer.zero_grad()
        plain = keywords() | {"x": tensors["x"].torch(), "past": (past.torch(), 2)}
        wanted = twin(**plain)
        wanted.backward()
        optimizer.step()
        (found,) = samba.session.run(given, outputs)
        close(found, wanted)
    for other in (2.0, True):
        with pytest.raises(ArgumentError, match=r"input_tensors\['scale'\].*wanted 2.5") as refused:
            samba.session.run(tensors | {"scale": other}, outputs)
        assert refused.value.deviation == "changed-argument"
    with pytest.raises(UnknownInput, match="scale"):
        samba.session.run(tensors | {"scale": torch.tensor(2.5)}, outputs)
    with pytest.raises(ArgumentError, match=r"input_tensors\['past_1'\].*found 3, wanted 2"):
        samba.session.run(tensors | {"past": (past, 3)}, outputs)


def test_another_value_is_another_model_for_a_pef(tmp_path):
    samba.session.reset()
    model = Options()
    samba.from_torch_model_(model)
    config = {"output_folder": str(tmp_path), "pef_name": "options"}
    pef = samba.session.compile(
        model, keywords(), name="options", config_dict=config, inference=True
    )
    for name, value in (("scale", 3.5), ("mode", "sum")):
        with pytest.raises(GraphMismatch, match="options"):
            utils.trace_graph(model, keywords() | {name: value}, pef=pef)
    samba.session.reset()


def test_a_position_takes_tensors_alone():
    with pytest.raises(InputError, match="x: float; wanted tensors or None"):
        samba.session.compile(Options(), (2.5,))
    with pytest.raises(InputError, match="scale: object; wanted tensors or None"):
        samba.session.compile(Options(), {"x": torch.zeros(2, 4), "scale": object()})


def test_a_graph_of_several_takes_the_dict_it_was_traced_with(tmp_path):
    samba.session.reset()
    model = Options()
    samba.from_torch_model_(model)
    given = keywords()
    outputs = utils.trace_multigraph(model, given)
    samba.session.add_graph(FwdGraph(given, outputs, name="only"))
    pef = samba.session.compile_multigraph(
        name="options", config_dict={"output_folder": str(tmp_path), "pef_name": "options"}
    )
    samba.session.init_multigraph_runtime(pef)
    tensors = {"x": given["x"], "past": given["past"][:1]}
    (found,) = samba.session.run(tensors, outputs, graph_name="only")
    wanted = Options()(**given | {"x": given["x"].torch(), "past": (given["past"][0].torch(), 2)})
    close(found, wanted)
    samba.session.reset()


def test_compare_calls_the_model_with_them():
    given = keywords() | {"x": torch.randn(2, 4), "past": (torch.randn(2, 4), 2)}
    assert utils.compare(Options(), given).ok
