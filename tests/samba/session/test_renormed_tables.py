"""Embeddings with ``max_norm``: the forward pass shortens rows of a parameter, as in torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samba
from pef_schema import read_info
from samba.tracer.capture import trace_model
from samba.tracer.errors import OverwrittenValue
from samba.tracer.inputs import collect_inputs
from tests.samba.session.loading import load
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome

INDICES = {"i": torch.tensor([[1, 2, 2], [3, 9, 0]])}


class _Loss(nn.Module):
    """The sum of what a module gives, each element with a factor of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.inner(i) * self.w
        return (out * torch.linspace(0.3, 1.2, out.numel()).reshape(out.shape)).sum(), out


class _Tied(nn.Module):
    """A table that is read twice and is the weight of a head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, max_norm=0.7)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(i) + self.table((i * 2) % 10))


class _HeadFirst(_Tied):
    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.w[i]).sum() + self.table(i).sum()

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(10, 4))


class _Ungraded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, max_norm=0.7)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            rows = self.table(i)
        return rows + self.table.weight[3]


class _BufferTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(10, 4))
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        self.table.add_(0.1)
        return F.embedding(i, self.table, max_norm=0.7) * self.w + self.table[3]


MODELS = {
    "table": lambda: nn.Embedding(10, 4, max_norm=0.7),
    "bag": lambda: nn.EmbeddingBag(10, 4, max_norm=0.7, mode="max"),
    "frozen": lambda: nn.Embedding.from_pretrained(torch.randn(10, 4), max_norm=0.7),
    "tied": _Tied,
    "ungraded": _Ungraded,
    "buffer": _BufferTable,
}
SLOW = {"bag", "frozen", "ungraded"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS]
)
def test_tables_are_shortened_as_in_torch(name, tmp_path):
    made = train_both(lambda: _Loss(MODELS[name]()), INDICES, tmp_path)
    assert made == (Outcome.EQUAL, "")


def test_a_table_whose_numbers_a_gradient_needs_is_refused_as_torch_refuses_it():
    model = _Loss(_HeadFirst())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(**INDICES)[0].backward()
    with pytest.raises(OverwrittenValue, match=r"renorm_.*modified by an inplace operation"):
        trace_model(model, collect_inputs(model, (INDICES["i"],)))


def test_a_table_is_shortened_where_nobody_reads_its_rows_and_in_a_forward_pass_alone(tmp_path):
    """The parameter is changed all the same, and ``to_cpu`` brings it back."""

    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4, max_norm=0.7)
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            self.table(i)
            return self.w.sum()

    model = Unread()
    before = model.table.weight.detach().clone()
    want = torch.embedding_renorm_(before.clone(), INDICES["i"], 0.7, 2.0)
    assert not torch.equal(want, before)
    samba.from_torch_model_(model)
    inputs = (samba.from_torch_tensor(INDICES["i"], name="i"),)
    outputs = load(model, inputs, tmp_path, inference=True)
    # Older readers know no forward pass that writes weights.
    assert read_info(samba.session.pef_path).min_reader == 4
    samba.session.run(inputs, outputs)
    samba.session.to_cpu(model)
    torch.testing.assert_close(samba.to_torch(model.table.weight).detach(), want)
