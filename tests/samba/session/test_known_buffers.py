"""Values of buffers that become part of a graph: what follows from them, and what changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from samba.session.check_pef import GraphMismatch
from samba.tracer.errors import DataDependentBranch
from tests.samba.session.loading import load
from tests.samba.worlds import close, named

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(2))


class Padded(nn.Module):
    """A convolution that pads as Encodec's does: lengths are buffers, and a mask is one."""

    stride: torch.Tensor
    kernel_size: torch.Tensor
    padding_total: torch.Tensor
    keep: torch.Tensor

    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 4, stride=stride)
        self.register_buffer("stride", torch.tensor(stride), persistent=True)
        self.register_buffer("kernel_size", torch.tensor(4), persistent=True)
        self.register_buffer("keep", torch.tensor([True, False, True, True]))
        self.register_buffer("padding_total", self.kernel_size - self.stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        frames = (length - self.kernel_size + self.padding_total) / self.stride + 1
        frames = torch.ceil(frames).to(torch.int64) - 1
        extra = int(frames * self.stride + self.kernel_size - self.padding_total - length)
        left = self.padding_total
        if self.kernel_size > 3:
            x = nn.functional.pad(x, (int(left), extra))
        found = self.conv(x)[:, self.keep]
        for number in range(self.stride):
            found = found + number
        found[:, :, torch.tensor([True] + [False] * (found.shape[-1] - 1))] = found[:, :, -1:] * 2
        return found.cumsum(1)


class Counted(Padded):
    """As that, but the buffer counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        self.stride.add_(1)
        return found


def compiled(model: nn.Module, folder: Path) -> str:
    config = {"output_folder": str(folder), "pef_name": "padded"}
    return samba.session.compile(model, named({"x": X}), None, config_dict=config, inference=True)


def run(model: Any) -> torch.Tensor:
    return samba.to_torch(samba.session.run(named({"x": X}), model.output_tensors)[0])


def test_lengths_and_masks_of_buffers_are_as_in_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Padded()
    with torch.no_grad():
        wanted = model(X)
    samba.from_torch_model_(model)
    load(model, named({"x": X}), tmp_path, inference=True)
    close(run(model), wanted)


def test_a_buffer_that_forward_changes_is_refused_with_the_line_that_reads_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataDependentBranch, match="stride is a buffer that it also") as caught:
        compiled(samba.from_torch_model_(Counted()), tmp_path)
    assert __file__ in caught.value.where


def test_another_value_at_the_load_is_another_model(tmp_path: Path) -> None:
    model = samba.from_torch_model_(Padded())
    pef = compiled(model, tmp_path)
    with torch.no_grad():
        model.keep.copy_(torch.tensor([True, True, False, True]))
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, named({"x": X}), pef=pef)
    model.keep.copy_(torch.tensor([True, False, True, True]))
    model.stride.fill_(3)
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, named({"x": X}), pef=pef)
    model.stride.fill_(2)
    utils.trace_graph(model, named({"x": X}), pef=pef)


def test_a_write_after_the_load_is_told_and_a_loaded_state_refused(
    tmp_path: Path, caplog: Any
) -> None:
    model = samba.from_torch_model_(Padded())
    load(model, named({"x": X}), tmp_path, inference=True)
    before = run(model)
    other = {k: samba.to_torch(v).clone() for k, v in model.state_dict().items()}
    model.load_state_dict(other)
    assert torch.equal(run(model), before)  # the values are the same
    with torch.no_grad():
        model.stride.fill_(3)
    assert torch.equal(run(model), before)
    found = [text for text in caplog.messages if "[deviation: host-write]" in text]
    assert len(found) == 1 and "stride" in found[0] and "Compile" in found[0]
    with pytest.raises(GraphMismatch, match="stride"):
        samba.session.to_rdu(model)
    other["kernel_size"].fill_(2)
    other["stride"].fill_(2)
    model.load_state_dict(other)
    with pytest.raises(GraphMismatch, match="kernel_size"):
        run(model)
    other["kernel_size"].fill_(4)
    model.load_state_dict(other)
    assert torch.equal(run(model), before)


class Warm(nn.Module):
    """A buffer that training counts, and that evaluation branches on."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        if self.training:
            self.steps.add_(1)
        elif self.steps > 1:
            y = y * 2
        return y.sum()


def test_what_another_graph_changes_is_not_known(tmp_path: Path) -> None:
    model = samba.from_torch_model_(Warm())
    load(model, named({"x": X}), tmp_path, samba.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(DataDependentBranch, match="steps, and runs of another graph"):
        samba.session.evaluator(model)


def test_other_values_are_not_written_to_the_device(tmp_path: Path) -> None:
    model = samba.from_torch_model_(Padded())
    load(model, named({"x": X}), tmp_path, inference=True)
    buffer = samba.session.buffer_dict["padded__stride"]
    buffer.sn_data = torch.tensor(2)
    with pytest.raises(GraphMismatch, match="stride"):
        buffer.sn_data = torch.tensor(3)
