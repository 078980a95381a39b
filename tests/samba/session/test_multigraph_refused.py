"""Graphs that cannot be one PEF, sessions without the graphs of a PEF, and branches in graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema import read_pef, write_pef
from samba.errors import ArgumentError, SambaError
from samba.graph import FwdGraph, SambaGraph
from samba.session.check_pef import GraphMismatch
from samba.session.graphs import GraphConflict, TiedWeights
from tests.api.covers import covers
from tests.pef_schema.samples import nothing
from tests.samba.graphs import Two, compiled, pair, two
from tests.samba.worlds import close, told


def test_tied_weights_are_refused_with_their_places():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    with pytest.raises(TiedWeights, match=r"0\.weight and 1\.weight") as caught:
        utils.trace_multigraph(model, torch.zeros(1, dtype=torch.int64))
    assert caught.value.tied == (("0.weight", "1.weight"),)


@covers("samba.utils.trace_multigraph(optimizers, init_output_grads)")
def test_graphs_accept_optimizers_and_do_not_train(tmp_path, caplog):
    model = nn.Linear(4, 2)
    x, _ = pair()
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    y = utils.trace_multigraph(model, x, optimizers=[optimizer], init_output_grads=True)
    assert [text.split(" changes")[0] for text in told(caplog)] == [
        "trace_multigraph(optimizers=...)",
        "trace_multigraph(init_output_grads=...)",
    ]
    samba.session.add_graph(FwdGraph(x, y, name="a"))
    with pytest.raises(ArgumentError, match=r"session\.compile\b"):
        samba.session.compile_multigraph(inference=False)
    pef = compiled(tmp_path)
    program = read_pef(pef)
    assert {kind.name for s in program.sections for kind in s.kinds} == {"FWD"}
    samba.session.init_multigraph_runtime(pef)
    samba.session.run(x, graph_name="a")
    close(y[0].sn_data, model(samba.to_torch(x)).detach())


def test_without_optimizers_nothing_is_told(caplog):
    x, _ = pair()
    utils.trace_multigraph(nn.Linear(4, 2), x, optimizers=[], init_output_grads=False)
    assert told(caplog) == []


def test_trace_graph_refuses_a_pef_of_several_graphs_whose_first_is_its_own(tmp_path):
    model = samba.from_torch_model_(nn.Linear(4, 2))
    x, _ = pair()
    for name, prefix in (("linear", ""), ("again", "again")):
        y = utils.trace_multigraph(model, x, trace_prefix=prefix)
        samba.session.add_graph(FwdGraph(x, y, name=name))
    pef = compiled(tmp_path)
    assert [graph.name for graph in read_pef(pef).graphs] == ["linear", "again"]
    with pytest.raises(ArgumentError, match="2 graphs: linear, again") as caught:
        utils.trace_graph(model, x, pef=pef, config_dict={})
    assert "init_multigraph_runtime" in caught.value.hint


def test_trace_graph_refuses_a_pef_without_a_graph(tmp_path):
    pef = tmp_path / "nothing.pef"
    write_pef(pef, nothing())
    with pytest.raises(ArgumentError, match="which holds no graph, expected a PEF of one graph"):
        utils.trace_graph(nn.Linear(4, 2), pair()[0], pef=str(pef), config_dict={})


def conflict() -> str:
    with pytest.raises(GraphConflict) as caught:
        samba.session.compile_multigraph(samba_only=True)
    return str(caught.value)


def test_all_conflicts_between_graphs_are_told_at_once():
    for name in ("a", "b"):
        x = samba.from_torch_tensor(torch.zeros(2, 4), name="x")
        y = utils.trace_multigraph(nn.Linear(4, 2), x)
        samba.session.add_graph(FwdGraph(x, y, name=name))
    text = conflict()
    assert "inputs x of a and x of b share region x; two inputs must not" in text
    assert "both have an output linear__linear__outputs__0" in text
    assert "trace_prefix" in text
    assert "different parameters or buffers named linear__weight" in text


def test_two_outputs_of_a_graph_in_one_region():
    x, y = pair()
    out, hidden = utils.trace_multigraph(two(), (x, y))
    out.sn_region_name = hidden.sn_region_name = "r"
    samba.session.add_graph(FwdGraph((x, y), (out, hidden), name="a"))
    assert "one region, r" in conflict()


def test_tensors_that_share_a_region_have_one_shape():
    x, y = pair()
    out, _ = utils.trace_multigraph(two(), (x, y))
    out.sn_region_name = x.sn_region_name
    samba.session.add_graph(FwdGraph((x, y), out, name="a"))
    with pytest.raises(SambaError, match=r"region x: .*\[2, 4\].*\[2, 3\]"):
        samba.session.compile_multigraph(samba_only=True)


def test_what_a_graph_may_start_and_stop_at():
    x, y = pair()
    out, hidden = utils.trace_multigraph(samba.from_torch_model_(two()), (x, y))
    stray = samba.from_torch_tensor(torch.zeros(1), name="stray")
    for graph, text in (
        (FwdGraph(x, out, name="a"), "a graph that needs y too"),
        (FwdGraph(hidden, out, name="a"), "a graph that needs y too"),
        (FwdGraph((x, y, stray), out, name="a"), "tensors of no trace: 'stray'"),
        (FwdGraph((x, y), stray, name="a"), "tensors that no trace computes: 'stray'"),
        (FwdGraph((x, hidden), hidden, name="a"), "relu__outputs__0, where the graph starts"),
    ):
        samba.session.add_graph(graph, overwrite=True)
        with pytest.raises(ArgumentError, match=text):
            samba.session.compile_multigraph(samba_only=True)
    for arguments, text in (
        ((x, out, ""), "a name of printable characters"),
        ((x, out, "a\n"), "a name of printable characters"),
        ((x, out, "é" * 600), "a name of 1200 bytes"),
        ((x, (), "a"), "no tensors"),
        ((3, out, "a"), "found int"),
        (((x, "y"), out, "a"), "str at 1"),
    ):
        with pytest.raises(ArgumentError, match=text):
            FwdGraph(*arguments)


def add_two(model: nn.Module, region: str) -> None:
    x, y = pair()
    out, hidden = utils.trace_multigraph(model, (x, y))
    out.sn_region_name = region
    samba.session.add_graph(FwdGraph((x, y), (out, hidden), name="two"))


def test_the_session_must_have_the_graphs_of_the_pef(tmp_path):
    add_two(two(), "place")
    path = compiled(tmp_path)
    samba.session.reset()
    add_two(two(), "elsewhere")
    with pytest.raises(GraphMismatch, match="region elsewhere here, place in the PEF"):
        samba.session.init_multigraph_runtime(path)
    samba.session.reset()

    class Other(Two):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out, hidden = super().forward(x, y)
            return out + 1, hidden

    Other.__name__ = "Two"
    add_two(Other(), "place")
    with pytest.raises(GraphMismatch, match=r"graph two, node \d+"):
        samba.session.init_multigraph_runtime(path)
    samba.session.reset()
    x, y = pair()
    out, _ = utils.trace_multigraph(two(), (x, y))
    samba.session.add_graph(FwdGraph((x, y), out, name="other"))
    with pytest.raises(ArgumentError, match="graphs other in the session, expected two"):
        samba.session.init_multigraph_runtime(path)


@covers("samba.utils.trace_multigraph(graph, trace_prefix)")
def test_a_second_trace_of_one_graph_is_refused():
    x, _ = pair()
    model = nn.Linear(4, 2)
    utils.trace_multigraph(model, x)
    with pytest.raises(ArgumentError, match=r"second trace of this Linear with no trace_prefix"):
        utils.trace_multigraph(model, x)
    utils.trace_multigraph(model, x, trace_prefix="again")
    with pytest.raises(ArgumentError, match="trace_prefix 'again'"):
        utils.trace_multigraph(model, x, trace_prefix="again")
    utils.trace_multigraph(nn.Linear(4, 2), x, trace_prefix="other")
    samba.session.reset()
    utils.trace_multigraph(model, x)


@covers("samba.session.add_graph(graph)")
def test_a_graph_without_tensors_is_refused():
    with pytest.raises(ArgumentError, match=r"FwdGraph\(start, stop, name\)") as caught:
        samba.session.add_graph(SambaGraph("bare"))
    assert caught.value.deviation == "bare-graph"


@covers("samba.session.compile_multigraph(kwarg)")
def test_any_keyword_of_compile_multigraph_is_accepted(tmp_path, caplog):
    x, _ = pair()
    y = utils.trace_multigraph(nn.Linear(4, 2), x)
    samba.session.add_graph(FwdGraph(x, y, name="a"))
    plain = Path(compiled(tmp_path / "plain")).read_bytes()
    assert told(caplog) == []
    config = {"output_folder": str(tmp_path), "pef_name": "decoder"}
    documented = {"io_host_memory": True, "graph_names": ["a"], "enable_hypersection": True}
    pef = None
    for _ in range(2):
        pef = samba.session.compile_multigraph(
            "decoder", config_dict=config, **documented, unheard_of=5, nmae="x"
        )
    assert Path(str(pef)).read_bytes() == plain
    (text,) = told(caplog)
    assert (
        "compile_multigraph(unheard_of=..., nmae=...): undocumented keywords have no effect" in text
    )
    assert text.endswith("did you mean name for nmae?")


# -- checks of branches in graphs that are cut out of a trace --------------------------


T = torch.Tensor


class Checked(nn.Module):
    """A model to cut in two, which looks at its input behind the cut."""

    def __init__(self, *, both: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.both = nn.Linear(4, 5), nn.Linear(5, 3), both

    def forward(self, x: T, y: T) -> tuple[T, T]:
        hidden = self.first(x).relu()
        out = self.second(hidden) * y
        if x.max() > 1e6:
            raise ValueError("the input is too large")
        if not torch.isfinite(out).all():
            raise ValueError("the output is infinite")
        if self.both and out.sum() > x.abs().sum() + 1e6:
            raise ValueError("the output is too large")
        return out, hidden


def cut(model: nn.Module, *, whole: bool = False) -> None:
    x, y = pair()
    out, hidden = utils.trace_multigraph(model, (x, y))
    samba.session.add_graph(FwdGraph(x, hidden, name="bottom"))
    samba.session.add_graph(FwdGraph((x, y) if whole else (hidden, y), out, name="top"))


def test_a_check_is_in_the_graph_that_has_what_it_looks_at(tmp_path: Path) -> None:
    cut(Checked())
    program = read_pef(compiled(tmp_path))
    checks = {
        graph.name: sum(node.op == CHECKED_BRANCH for node in graph.nodes)
        for graph in program.graphs
    }
    assert checks == {"bottom": 1, "top": 1}


def test_a_check_on_both_sides_of_a_cut_is_refused(tmp_path: Path) -> None:
    cut(Checked(both=True))
    line = Checked.forward.__code__.co_firstlineno + 7
    with pytest.raises(
        ArgumentError, match=rf"test_multigraph_refused.py:{line} that depends on x, too"
    ):
        compiled(tmp_path)


def test_a_graph_without_a_cut_has_all_checks(tmp_path: Path) -> None:
    cut(Checked(both=True), whole=True)
    program = read_pef(compiled(tmp_path))
    (top,) = [graph for graph in program.graphs if graph.name == "top"]
    assert sum(node.op == CHECKED_BRANCH for node in top.nodes) == 3


def test_a_buffer_that_an_input_replaces_is_no_check() -> None:
    class Replaced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 5)
            self.register_buffer("seen", torch.zeros(2, 4))

        def forward(self, x: T) -> T:
            self.seen.copy_(x)
            out = self.first(x)
            if out.max() > 1e6:
                raise ValueError("the output is too large")
            return out

    x, _ = pair()
    out = utils.trace_multigraph(Replaced(), x)
    samba.session.add_graph(FwdGraph(x, out, name="whole"))
    samba.session.compile_multigraph(samba_only=True)
