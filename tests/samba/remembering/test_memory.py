"""A model that was found equal to a PEF is not traced again, unless something says otherwise."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samba
from emulator.kept_files import CACHE_VARIABLE, KeptFiles
from samba import utils
from samba.errors import ArgumentError
from samba.remembering import memory, trace_key
from samba.session.check_pef import GraphMismatch, OptimizerMismatch
from samba.tracer import trace_cache
from tests.tracing import counted_traces

X, Y = torch.randn(4, 6), torch.randint(0, 3, (4,))


class Net(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 3)
        self.drop = nn.Dropout(0.25)
        self.criterion = nn.CrossEntropyLoss()
        self.factor = 2.0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.factor if self.scale.item() == 1 else 1.0
        out = self.linear(self.drop(self.norm(x))) * factor
        return self.criterion(out, y), out


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every trace; nothing is kept but in files of this test."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(memory.TRACE_VARIABLE, "remember")
    return counted_traces(monkeypatch)


def built() -> tuple[nn.Module, tuple[Tensor, Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net()
    samba.from_torch_model_(model)
    inputs = samba.from_torch_tensor(X, name="x"), samba.from_torch_tensor(Y, name="y")
    return model, inputs, samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture
def pef(tmp_path: Path, traces: list[Any]) -> Iterator[str]:
    """The path of a PEF that was compiled in another process, as far as one can tell."""
    samba.session.reset()
    model, inputs, optimizer = built()
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    yield samba.session.compile(model, inputs, optimizer, name="net", config_dict=config)
    samba.session.reset()


def losses(pef: str, model: nn.Module | None = None) -> list[float]:
    """Losses of three steps of a model that is loaded as in another process."""
    own, inputs, optimizer = built()
    outputs = utils.trace_graph(own if model is None else model, inputs, optimizer, pef=pef)
    runs = [samba.session.run(inputs, outputs)[0] for _ in range(3)]
    return [float(samba.to_torch(run).sum()) for run in runs]


def remembered(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "traces").iterdir())


def test_what_was_compiled_is_not_traced_to_be_run(
    pef: str, traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(remembered(tmp_path)) == 1
    first = losses(pef)
    assert len(traces) == 1
    monkeypatch.delenv(memory.TRACE_VARIABLE)
    assert losses(pef) == first
    assert len(traces) == 2


def test_a_run_remembers_too(pef: str, traces: list[Any], tmp_path: Path) -> None:
    for path in remembered(tmp_path):
        path.unlink()
    assert losses(pef) == losses(pef)
    assert len(traces) == 2
    assert len(remembered(tmp_path)) == 1


def test_a_changed_model_is_found(pef: str, traces: list[Any]) -> None:
    model, inputs, optimizer = built()
    model.factor = 3.0
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, inputs, optimizer, pef=pef)
    assert len(traces) == 2


def test_a_buffer_whose_value_is_part_of_the_graph_is_compared(pef: str, traces: list[Any]) -> None:
    model, inputs, optimizer = built()
    model.scale.fill_(2)
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, inputs, optimizer, pef=pef)
    assert len(traces) == 2


def test_optimizers_are_still_compared(pef: str, traces: list[Any]) -> None:
    model, inputs, _ = built()
    with pytest.raises(OptimizerMismatch):
        utils.trace_graph(model, inputs, samba.optim.AdamW(model.parameters()), pef=pef)
    assert len(traces) == 1


def test_another_pef_is_compared(pef: str, traces: list[Any], tmp_path: Path) -> None:
    model, inputs, optimizer = built()
    model.factor = 3.0
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    assert samba.session.compile(model, inputs, optimizer, name="net", config_dict=config) == pef
    with pytest.raises(GraphMismatch):
        losses(pef)
    assert len(traces) == 3


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _foreign(path: Path) -> None:
    path.chmod(0o666)


def _of_other_fields(path: Path) -> None:
    from emulator.kept_files import KeptFiles

    KeptFiles(path.parent, limit=1 << 20).put(path.stem, b'{"trace":{},"told":[],"files":{}}')


def _of_other_values(path: Path) -> None:
    files = KeptFiles(path.parent, limit=1 << 20)
    record = json.loads(files.get(path.stem) or b"")
    record["trace"]["outputs"] = record["trace"]["outputs"][:1]
    files.put(path.stem, json.dumps(record).encode())


@pytest.mark.parametrize("damage", [_cut, _foreign, _of_other_fields, _of_other_values])
def test_a_record_that_cannot_be_used_is_made_anew(
    damage: Any, pef: str, traces: list[Any], tmp_path: Path
) -> None:
    first = losses(pef)
    (path,) = remembered(tmp_path)
    damage(path)
    assert losses(pef) == first
    assert len(traces) == 2
    assert losses(pef) == first
    assert len(traces) == 2


def test_a_folder_that_cannot_be_written_is_told_once(
    pef: str,
    traces: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    losses(pef)
    losses(pef)
    assert len(traces) == 3
    lines = [r.getMessage() for r in caplog.records if "traces" in r.getMessage()]
    assert len(lines) == 1
    assert "goes on without" in lines[0]


def test_another_version_traces(
    pef: str, traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_key, "own_version", lambda: "another one")
    losses(pef)
    assert len(traces) == 2


def test_a_full_folder_forgets_the_oldest(
    pef: str, traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = remembered(tmp_path)
    monkeypatch.setattr(memory, "_LIMIT", path.stat().st_size + 10)
    monkeypatch.setattr(trace_key, "own_version", lambda: "another one")
    losses(pef)
    losses(pef)
    assert len(traces) == 2
    assert len(remembered(tmp_path)) == 1


def test_a_wish_that_is_none_is_refused(pef: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.TRACE_VARIABLE, "sometimes")
    with pytest.raises(ArgumentError, match="SAMBA_TRACE"):
        losses(pef)


class Odd(nn.Module):
    """Its trace says something, and it holds what cannot be compared, if told."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.linear, self.held = nn.Linear(6, 3), held

    def forward(self, x: Tensor) -> Tensor:
        if torch.isfinite(x).all():
            return self.linear(x).sum()
        return self.linear(x).mean()


def _loads(model: nn.Module, tmp_path: Path) -> None:
    samba.session.reset()
    config = {"output_folder": str(tmp_path), "pef_name": "odd"}
    path = samba.session.compile(model, X, name="odd", config_dict=config, inference=True)
    trace_cache._kept.clear()
    utils.trace_graph(model, X, pef=path)
    samba.session.reset()


def test_what_a_trace_tells_is_told_again(
    traces: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _loads(Odd(), tmp_path)
    assert len(traces) == 1
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 2, told
    assert told[0] == told[1]
    assert "[deviation: " in told[0]


def test_what_cannot_be_compared_is_traced_and_named(
    traces: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "samba"):
        _loads(Odd(iter([1])), tmp_path)
    assert len(traces) == 2
    assert "model.held is a list_iterator" in caplog.text


def test_a_module_that_forward_loads_is_looked_at(
    traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "loaded_late.py"
    late.write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            from loaded_late import FACTOR  # pyright: ignore[reportMissingImports]

            return x * FACTOR

    samba.session.reset()
    config = {"output_folder": str(tmp_path), "pef_name": "late"}
    path = samba.session.compile(Late(), X, name="late", config_dict=config, inference=True)
    # Of another length: Python looks at a file's second and size to see whether it has changed.
    for text, number in (("FACTOR = 2\n", 1), ("FACTOR = 30\n", 2)):
        sys.modules.pop("loaded_late", None)
        late.write_text(text)
        if number == 1:
            utils.trace_graph(Late(), X, pef=path)
        else:
            with pytest.raises(GraphMismatch):
                utils.trace_graph(Late(), X, pef=path)
        assert len(traces) == number
    sys.modules.pop("loaded_late", None)
    samba.session.reset()
