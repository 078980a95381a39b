"""Names of models and files that would steer a terminal: logs, tables, reports, warnings."""

from __future__ import annotations

import io
import json
import logging
import struct

import pytest
import torch

import samba
from samba.comparison.command import run
from samba.support import progress
from samba.support.deviations import tell
from samba.utils import compare
from samba.utils.checkpoint import BadCheckpoint, load_sharded_checkpoint
from samba.utils.measure import SectionTime, format_sections, measure_performance, measure_sections
from tests.terminal import NAME, TEXT, foreign

MODULE = f"""
import torch

def make():
    model = torch.nn.Sequential()
    model.add_module("fc" + {NAME!r}, torch.nn.Linear(4, 3))
    return model, torch.randn(2, 4)

def failing():
    raise RuntimeError("no" + {TEXT!r})
"""


class Odd(torch.nn.Module):
    """A model whose names are what attributes may be."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("fc" + NAME, torch.nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, "fc" + NAME)(x).sum()


def test_compiling_and_measuring(tmp_path, capsys):
    model = samba.from_torch_model_(Odd())
    inputs = (samba.ones(2, 4, name="x" + NAME),)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    config = {"pef_name": "odd", "output_folder": str(tmp_path), "optim_level": "o0"}
    metadata = {"key" + NAME: TEXT}
    pef = samba.session.compile(
        model, inputs, optimizer, config_dict=config, pef_metadata=metadata, name="odd" + NAME
    )
    log = (tmp_path / "odd" / "odd.pef.log").read_text(encoding="utf-8")
    assert "\\u202e" in log
    assert not foreign(log)
    samba.utils.trace_graph(model, inputs, optimizer, pef=pef, config_dict={})
    measure_performance(model, inputs, n_iterations=1, json=str(tmp_path / "one.json"))
    measure_sections(model, inputs, n_iterations=1, json=str(tmp_path / "two.json"))
    with pytest.raises(samba.errors.SambaError) as caught:
        samba.session.run(inputs, TEXT)
    assert not foreign(str(caught.value)) and "\\x1b" in str(caught.value)
    printed = capsys.readouterr()
    assert not foreign(printed.out + printed.err)
    for name in ("one", "two"):
        text = (tmp_path / f"{name}.json").read_text(encoding="utf-8")
        assert json.loads(text) and not foreign(text)
    assert not foreign(repr(model.output_tensors[0]))


def test_comparing(tmp_path, capsys):
    (tmp_path / "odd.py").write_text(MODULE, encoding="utf-8")
    for more in ([], ["--all"], ["--json", "-"], ["--json", str(tmp_path / "out.json")]):
        assert run([*more, f"{tmp_path / 'odd.py'}:make"]) == 0
        captured = capsys.readouterr()
        assert not foreign(captured.out + captured.err), more
        if "-" in more:
            assert json.loads(captured.out)["ok"]
    assert not foreign((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert run([f"{tmp_path / 'odd.py'}:make" + TEXT]) == 2
    assert not foreign(capsys.readouterr().err)
    assert not foreign(str(compare(Odd(), (torch.randn(2, 4),))))


def test_tables_keep_their_columns():
    """A cell is as wide as what is shown of it."""
    rows = [
        SectionTime(
            section_id=i,
            name=name,
            type="FWD",
            calls=1,
            min_ms=1.0,
            median_ms=1.0,
            max_ms=1.0,
            share=0.5,
        )
        for i, name in enumerate(("plain", "a\nb" + TEXT))
    ]
    lines = format_sections(rows).splitlines()
    assert len(lines) == 3
    assert len({line.index("1.000") for line in lines[1:]}) == 1
    assert not foreign("\n".join(lines))


def test_warnings_and_progress(caplog, monkeypatch):
    with caplog.at_level(logging.WARNING, "samba"):
        tell("zero-output", f"output {TEXT} is zeros")
    assert not foreign(caplog.records[-1].getMessage())

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with progress.stages(f"load {TEXT}", "reading") as stage:
        stage.start("reading")
    shown = terminal.getvalue()
    assert "\\x1b]0;title" in shown
    for steering in ("\x1b]", "\x1b[31m", "\u202e", "\x07", "\x9b"):
        assert steering not in shown


def test_checkpoints(tmp_path):
    """Keys of a safetensors file, and the file's own name."""
    key, data = "w" + TEXT, struct.pack("<f", 1.0)
    header = json.dumps({key: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    with pytest.raises(BadCheckpoint) as caught:
        load_sharded_checkpoint(torch.nn.Linear(1, 1), path)
    assert "\\x1b" in str(caught.value) and not foreign(str(caught.value))
    with pytest.raises(BadCheckpoint) as caught:
        load_sharded_checkpoint(torch.nn.Linear(1, 1), tmp_path / "no\x1b[31m\u202e")
    assert not foreign(str(caught.value))
