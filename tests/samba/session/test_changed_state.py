"""A PEF is refused for a model whose constants or state updates are others than compiled."""

from __future__ import annotations

import pytest
import torch

import samba
from samba import utils
from samba.session.check_pef import GraphMismatch

X = torch.ones(2, 3)


class Shifted(torch.nn.Module):
    """Adds a tensor that is held as a plain attribute, and one that ``forward`` makes."""

    def __init__(self, shift: float, scale: float = 2.0) -> None:
        super().__init__()
        self.shift, self.scale = torch.full((3,), shift), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([self.scale, 1.0, 1.0]) + self.shift


class Running(torch.nn.Module):
    """Two sums over runs, of the sum and of the mean of the inputs."""

    sums: torch.Tensor
    means: torch.Tensor

    def __init__(self, *, swapped: bool) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(()))
        self.register_buffer("means", torch.zeros(()))
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, mean = self.sums + x.sum(), self.means + x.mean()
        if self.swapped:
            total, mean = mean, total
        self.sums.copy_(total)
        self.means.copy_(mean)
        return x * 2


def compiled(model: torch.nn.Module, folder) -> str:
    config = {"output_folder": str(folder), "pef_name": "net"}
    return samba.session.compile(model, given(), inference=True, config_dict=config)


def given() -> samba.SambaTensor:
    return samba.from_torch_tensor(X.clone(), name="x")


def load(model: torch.nn.Module, pef: str) -> torch.Tensor:
    samba.from_torch_model_(model)
    outputs = utils.trace_graph(model, given(), pef=pef)
    return samba.session.run(given(), outputs)[0].torch()


def test_equal_constants_fit(tmp_path):
    pef = compiled(Shifted(3.0), tmp_path)
    assert torch.equal(load(Shifted(3.0), pef), Shifted(3.0)(X))


@pytest.mark.parametrize(
    ("other", "count"), [(Shifted(4.0), 1), (Shifted(3.0, 5.0), 1), (Shifted(4.0, 5.0), 2)]
)
def test_other_constants_are_named(tmp_path, other, count):
    pef = compiled(Shifted(3.0), tmp_path)
    with pytest.raises(GraphMismatch) as caught:
        load(other, pef)
    text = str(caught.value)
    assert text.count("its contents differ from the PEF's") == count
    assert "constant shifted__" in text and "[3] float32" in text
    assert "Register a tensor that changes as a buffer" in text


def test_a_constant_changed_after_the_compile_is_named(tmp_path):
    """The process that compiled the model does not take its trace for the present one."""
    model = Shifted(3.0)
    pef = compiled(model, tmp_path)
    model.shift.fill_(4.0)
    with pytest.raises(GraphMismatch, match="constant shifted__"):
        load(model, pef)


def test_updates_of_each_others_state_are_another_model(tmp_path):
    pef = compiled(Running(swapped=False), tmp_path)
    with pytest.raises(GraphMismatch, match="sums <- "):
        load(Running(swapped=True), pef)


def test_the_same_updates_fit_and_run(tmp_path):
    pef = compiled(Running(swapped=False), tmp_path)
    model = Running(swapped=False)
    load(model, pef)
    samba.session.to_cpu(model)
    assert (model.sums.item(), model.means.item()) == (6.0, 1.0)
