"""Buffers that a part of forward under torch.utils.checkpoint changes."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome
from tests.tracing import trace

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 18).reshape(6, 3)


class Part(nn.Module):
    """Batch norm, or what one makes oneself of its function, or a count."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.register_buffer("n", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        if self.kind == "module":
            return self.bn(h)
        if self.kind == "function":
            return F.batch_norm(h, self.mean, self.var, training=True)
        if self.kind == "count":
            self.n += 1
        return h.tanh()


class Checked(nn.Module):
    """A part under a checkpoint, or as it is."""

    def __init__(self, kind: str, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.part, self.reentrant = nn.Linear(3, 4), Part(kind), reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.reentrant is None:
            return self.part(h).sin().mean()
        return checkpoint(self.part, h, use_reentrant=self.reentrant).sin().mean()


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name == "samba"]
    return [text for text in texts if "[deviation: checkpointed-state]" in text]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("module", "part.bn.running_mean, part.bn.running_var, part.bn.num_batches_tracked"),
        ("function", "part.mean, part.var"),
        ("count", "part.n"),
    ],
)
def test_state_of_a_checkpointed_part_is_told_with_its_line(kind, names, reentrant, caplog):
    caplog.set_level(logging.WARNING)
    trace(Checked(kind, reentrant), (X,))
    (text,) = _told(caplog)
    assert f"a checkpointed function changes {names}." in text
    assert re.search(rf"{re.escape(__file__)}:\d+", text)


@pytest.mark.parametrize("how", ["no part", "no change", "evaluation", "inference"])
def test_nothing_is_told_where_torch_changes_nothing_twice(how, caplog):
    caplog.set_level(logging.WARNING)
    reentrant = None if how == "no part" else how == "evaluation"
    model = Checked("none" if how == "no change" else "module", reentrant)
    trace(model.eval() if how == "evaluation" else model, (X,), inference=how == "inference")
    assert not _told(caplog)


def test_statistics_move_once_in_a_step_and_that_is_told(tmp_path):
    torch.manual_seed(0)
    plain = Checked("module", None)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        plain(X).backward()
        optimizer.step()
    end, text = train_both(
        lambda: Checked("module", False), {"x": X}, tmp_path, tells=["checkpointed-state"]
    )
    assert end is Outcome.NAMED
    ours = float(re.findall(r"worst (-?[\d.]+) instead", text)[0])
    assert min(abs(plain.part.bn.get_buffer("running_mean") - ours)) < 1e-6
