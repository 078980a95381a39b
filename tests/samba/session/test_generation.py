"""Graphs of one PEF: what they share, and what their PEF is bound to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from samba.graph import FwdGraph
from tests.samba.graphs import compiled
from tests.samba.session.loading import load, reload_graphs
from tests.samba.worlds import close

Tensors = tuple[torch.Tensor, ...]


class Shared:
    """Tensors that all modules of a process take from here, made by who asks first."""

    def __init__(self) -> None:
        self.made: dict[str, Tensors] = {}

    def get(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


shared = Shared()


class Turned(nn.Module):
    """Multiplies by a table that the first trace makes and others take, as rotary ones are."""

    angles: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (table,) = shared.get("table", lambda: (self.angles.to(x.dtype).cos() * 1.0,))
        return x * table


def trace_rows(model: nn.Module, *rows: int) -> dict[int, Any]:
    """Add a graph for inputs of each number of rows; returns their outputs."""
    outputs = {}
    for count in rows:
        x = samba.from_torch_tensor(torch.ones(count, 4), name=f"x{count}")
        outputs[count] = utils.trace_multigraph(model, x, trace_prefix=f"rows{count}")
        samba.session.add_graph(FwdGraph(x, outputs[count], name=f"rows{count}"))
    return outputs


def test_a_table_outside_of_the_model_serves_all_graphs(tmp_path: Path) -> None:
    def add() -> dict[int, Any]:
        shared.made.clear()
        return trace_rows(samba.from_torch_model_(Turned()), 2, 3)

    outputs = reload_graphs(add, tmp_path)
    for rows in (3, 2):
        x = torch.randn(rows, 4)
        given = samba.from_torch_tensor(x, name=f"x{rows}")
        (found,) = samba.session.run(given, outputs[rows], graph_name=f"rows{rows}")
        shared.made.clear()
        close(found, Turned()(x))


def test_what_depends_on_inputs_is_no_constant_of_the_next_graph() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (first,) = shared.get("first", lambda: (x.sum(0),))
            return self.lin(x) + first

    shared.made.clear()
    changed = r"changes values .*\n.*shared\.made\['first'\]: nothing -> a tuple"
    with pytest.raises(samba.SambaError, match=changed):
        trace_rows(samba.from_torch_model_(Kept()), 2, 3)
    shared.made.clear()


# -- what graphs share, and what their PEF is bound to ---------------------------------


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.angles.cos()
        samba.session.add_aux_tensor(table, "table")
        return x * table


class TwoTables(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samba.session.add_aux_tensor(x + 1, "table")
        return super().forward(x)


def test_each_graph_makes_its_auxiliary_tensor_anew() -> None:
    trace_rows(samba.from_torch_model_(Table()), 1, 2)


def test_two_auxiliary_tensors_of_one_graph_do_not_share_a_name() -> None:
    x = samba.from_torch_tensor(torch.ones(2, 4), name="x")
    with pytest.raises(samba.SambaError, match="found 'table', expected a name that is not empty"):
        utils.trace_multigraph(samba.from_torch_model_(TwoTables()), x)


class Position(nn.Module):
    def forward(self, last: torch.Tensor) -> torch.Tensor:
        return torch.minimum(last + 1, torch.full((1, 1), 2**40))  # int64, as torch has it


def test_an_output_in_the_region_of_an_input_has_its_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def traced() -> None:
        last = samba.from_torch_tensor(torch.zeros(1, 1, dtype=torch.int32), name="last")
        (new,) = utils.trace_multigraph(samba.from_torch_model_(Position()), last)
        new.sn_region_name = last.sn_region_name
        samba.session.add_graph(FwdGraph({"last": last}, (new,), name="next"))

    traced()
    pef = compiled(tmp_path, "position")
    assert "last (int64 in int32)" in caplog.text
    assert caplog.text.count("[deviation: cast-in-place]") == 1
    samba.session.reset()
    traced()
    samba.session.init_multigraph_runtime(pef)
    given = torch.tensor([[5]], dtype=torch.int32)
    samba.session.run((samba.from_torch_tensor(given, name="last"),), graph_name="next")
    for wanted in (6, 7):
        found = samba.session.get_tensors_by_name(["last"])[0].data
        assert found.dtype == torch.int32 and samba.to_torch(found).tolist() == [[wanted]]
        samba.session.run((), graph_name="next")


class Words(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(5, 3, padding_idx=padding)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids)


def test_a_pef_for_inference_serves_another_padding_index(tmp_path: Path) -> None:
    ids = samba.from_torch_tensor(torch.tensor([[1, 4]]), name="ids")
    load(samba.from_torch_model_(Words(None)), (ids,), tmp_path, inference=True)
    pef = samba.session.pef_path
    outputs = utils.trace_graph(samba.from_torch_model_(Words(1)), (ids,), pef=pef)
    (found,) = samba.session.run(input_tensors=(ids,), output_tensors=outputs)
    close(found, Words(1)(torch.tensor([[1, 4]])), "words")
