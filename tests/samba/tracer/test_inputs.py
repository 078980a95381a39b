"""Inputs of a model are looked at once in a compile and once in a load."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import samba
from samba import utils
from samba.tracer import inputs


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every collection, whoever asks for it."""
    found: list[Any] = []
    real = inputs.TraceInputs

    def counted(**parts: Any) -> Any:
        found.append(parts)
        return real(**parts)

    monkeypatch.setattr(inputs, "TraceInputs", counted)
    return found


@pytest.mark.parametrize("between", ["nothing", "a change"])
def test_inputs_are_collected_once(between: str, tmp_path, collected: list[Any]) -> None:
    samba.session.reset()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    samba.from_torch_model_(model)
    x = samba.randn(2, 4, name="x", batch_dim=0)
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    pef = samba.session.compile(model, x, name="net", config_dict=config, inference=True)
    assert len(collected) == 1
    if between == "a change":  # then it is traced again, on the same inputs
        model.append(nn.Identity())
    utils.trace_graph(model, x, pef=pef)
    assert len(collected) == 2
    samba.session.reset()
