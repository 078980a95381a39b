"""Checks of branches in graphs that are cut out of a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema import read_pef
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from tests.samba.graphs import compiled, pair

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
    with pytest.raises(ArgumentError, match=rf"multigraph_checks.py:{line} that depends on x, too"):
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
