"""What graphs of one PEF share: auxiliary tensors and regions; and what the PEF is bound to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from samba.graph import FwdGraph
from tests.samba.worlds import close


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
    model = samba.from_torch_model_(Table())
    for rows in (1, 2):
        x = samba.from_torch_tensor(torch.ones(rows, 4), name=f"x{rows}")
        utils.trace_multigraph(model, x, trace_prefix=f"rows{rows}")


def test_two_auxiliary_tensors_of_one_graph_do_not_share_a_name() -> None:
    x = samba.from_torch_tensor(torch.ones(2, 4), name="x")
    with pytest.raises(samba.SambaError, match="found 'table', wanted a name not yet taken"):
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
    pef = samba.session.compile_multigraph(
        name="position", config_dict={"output_folder": str(tmp_path)}, inference=True
    )
    assert "last (int64 in int32)" in caplog.text
    assert caplog.text.count("[deviation: cast-in-place]") == 1
    samba.session.reset()
    traced()
    assert pef is not None
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
    folder = {"output_folder": str(tmp_path)}
    model = samba.from_torch_model_(Words(None))
    pef = samba.session.compile(model, (ids,), name="words", inference=True, config_dict=folder)
    samba.session.reset()
    model = samba.from_torch_model_(Words(1))
    outputs = utils.trace_graph(model, (ids,), pef=pef)
    (found,) = samba.session.run(input_tensors=(ids,), output_tensors=outputs)
    close(found, Words(1)(torch.tensor([[1, 4]])), "words")
