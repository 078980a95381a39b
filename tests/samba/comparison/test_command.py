"""``python -m samba compare``: scripts, functions, wrong use, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

from emulator.ops import registry
from samba.comparison.command import run
from tests.processes import finished

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.atan(self.layer(x)).sum()

def make():
    return Net(), torch.randn(2, 4)

def wrong():
    return Net()

def failing():
    raise RuntimeError("no model today")
"""

APP = """
import sys, torch
from net import Net
import sambaflow.samba as samba
from sambaflow.samba.utils import trace_graph
from sambaflow.samba.utils.argparser import parse_app_args

def main():
    args = parse_app_args(sys.argv[1:])
    model, inputs = Net(), samba.randn(args.batch_size, 4, name="x")
    samba.from_torch_model_(model)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    if args.command == "compile":
        samba.session.compile(model, inputs, optimizer, name="net")
    elif args.command == "run":
        trace_graph(model, inputs, optimizer, pef=args.pef)
    print("the script went on")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "net.py").write_text(MODULE)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "parsing.py").write_text(APP.replace("__name__", "'__main__'"))
    (tmp_path / "broken.py").write_text("raise ValueError('no import today')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr("samba.argconf.parsed._last.value", None)
    yield tmp_path
    sys.modules.pop("net", None)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_ops()
    spec = registry._OPS["aten.atan.default"]
    wrong = replace(spec, lower=lambda x: jnp.arctan(x) * 1.01)
    monkeypatch.setitem(registry._OPS, "aten.atan.default", wrong)


def test_a_function_and_its_report(folder, capsys):
    assert run(["net:make"]) == 0
    assert "no operation is beyond its tolerance" in capsys.readouterr().out
    assert run(["--forward", "--inference", "--json", "-", "net.py:make"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "net" and report["ok"]
    assert not [row for row in report["rows"] if row["phase"] == "backward"]


def test_a_script_with_its_own_arguments(folder, capsys, planted):
    assert run(["--all", "--json", "found.json", "app.py", "compile", "-b", "5"]) == 1
    out = capsys.readouterr().out
    assert "first that differs: forward node 1, aten.atan.default" in out
    assert f"{folder / 'net.py'}:10" in out
    assert "the script went on" not in out and "all rows" in out
    report = json.loads((folder / "found.json").read_text())
    first = report["rows"][report["first"]]
    assert first["op"] == "aten.atan.default" and first["shape"] == [5, 3]
    assert not (folder / "out").exists()  # nothing was compiled
    # What would run is compared where it would load its PEF; the PEF is not needed.
    assert run(["app.py", "run", "--pef", "none.pef"]) == 1
    assert run(["app.py", "compile", "--inference"]) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py"], "no file missing.py"),
        (["missing.py", "compile"], "no file missing.py"),
        (["missing.py:make"], "no file missing.py"),
        (["nowhere:make"], "no module 'nowhere'"),
        (["net:absent"], "no function 'absent' in net"),
        (["net"], "'net'"),
        (["net:"], "module:function"),
        (["net:wrong"], "returned Net"),
        (["net:failing"], "no model today"),
        (["broken.py:make"], "broken.py failed when it was imported: no import today"),
        (["broken:make"], "a module that only defines functions"),
        (["parsing.py:make"], "parsing.py ended with exit code 2 when it was imported"),
        (["parsing.py:make"], "python -m samba compare parsing.py compile ..."),
        (["net:make", "compile"], "they are for scripts"),
        (["net.py"], "ended without compiling a model"),
        (["app.py", "test", "--pef", "x"], "ended without compiling a model"),
        (["app.py", "no-such-command"], "exit code 2"),
        (["--json", "no/such/folder.json", "net:make"], "folder.json: there is no folder"),
        (["--json", ".", "net:make"], "a folder of this name is in the way"),
    ],
)
def test_wrong_use_says_what_is_wrong(folder, capsys, arguments, text):
    assert run(arguments) == 2
    assert text in capsys.readouterr().err


def test_wrong_options_are_argparses(capsys):
    for arguments in ([], ["--no-such-option", "net:make"]):
        with pytest.raises(SystemExit) as end:
            run(arguments)
        assert end.value.code == 2
        assert "usage: python -m samba compare" in (text := capsys.readouterr().err)
        assert arguments or text.endswith("are required: TARGET\n")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["samba", "sambaflow.samba"])
def test_as_a_program(folder, package):
    done = finished(
        [sys.executable, "-m", package, "compare", "missing.py"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 2 and "no file missing.py" in done.stderr
