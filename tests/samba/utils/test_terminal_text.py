"""What a user sees in a terminal: names that would steer it, and the output after a mistake."""

from __future__ import annotations

import io
import json
import logging
import struct
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

import samba
import samba.__main__ as cli
from samba.comparison.command import run
from samba.support import progress
from samba.support.deviations import tell
from samba.utils import compare
from samba.utils.checkpoint import BadCheckpoint, load_sharded_checkpoint
from samba.utils.measure import SectionTime, format_sections, measure_performance, measure_sections
from tests.terminal import NAME, TEXT, foreign
from tests.warm import forked

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
    for more in (["--json", "-"], ["--all", "--json", str(tmp_path / "out.json")]):
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


# -- the whole output after a usual mistake, and that it is short ----------------------


APP = """
import sys, torch
import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args

class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{layer} = torch.nn.Linear(8, {width})

    def forward(self, x):
        return self.{layer}(x).square().mean()

args = parse_app_args()
model = samba.from_torch_model_({name}())
x = samba.from_torch_tensor(torch.ones(4, 8), name="x", batch_dim=0)
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, (x,), optimizer, name="net", config_dict=vars(args))
elif args.command != "test":
    utils.trace_graph(model, (x,), optimizer, pef=args.pef)
    {run}
"""
PLAIN = {"name": "Net", "layer": "fc", "width": 16, "run": "samba.session.run((x,), ())"}
WORKERS = """
    import logging, torch.utils.data as data
    logging.basicConfig(level=logging.INFO)
    loader = data.DataLoader(data.TensorDataset(torch.ones(8, 8)), batch_size=4, num_workers=1)
    for (batch,) in loader:
        samba.session.run((samba.from_torch_tensor(batch, name="x"),), ())
""".strip()
APPS = {
    "net": PLAIN,
    "other": PLAIN | {"name": "Other"},
    "wider": PLAIN | {"width": 17},
    "backward": PLAIN | {"run": "samba.session.run((x,), model.output_tensors)[0].backward()"},
    "measured": PLAIN | {"run": "utils.measure_performance(model, (x,), args.batch_size)"},
    "workers": PLAIN | {"run": WORKERS},
}
COMMANDS = {
    "renamed": ("other", "run -p net.pef"),
    "wider": ("wider", "run -p net.pef"),
    "no pef": ("net", "run -p nowhere.pef"),
    "folder": ("net", "run -p ."),
    "backward": ("backward", "run -p net.pef"),
    "dropped": ("net", "test -p net.pef"),
    "alone": ("net", "run --data-parallel -p net.pef"),
    "batch": ("measured", "measure-performance -n 3 -p net.pef"),
    "workers": ("workers", "run -p net.pef"),
}
HEAD = """
import torch, samba.session.loading, emulator.device
torch.export.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),), strict=False)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("terminal")
    for name, parts in APPS.items():
        (folder / f"{name}.py").write_text(APP.format(**parts))

    def command(app: str, line: str) -> str:
        argv = [f"{app}.py", *line.split()]
        return (
            f"import os, runpy, sys; os.chdir({str(folder)!r}); sys.argv = {argv}\n"
            f"runpy.run_path({argv[0]!r}, run_name='__main__')"
        )

    (compiled,) = forked(HEAD, [command("net", "compile -p net.pef")])
    assert compiled.returncode == 0, compiled.stderr
    done = forked(HEAD, [command(*c) for c in COMMANDS.values()])
    return dict(zip(COMMANDS, done, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts"),
    {
        "renamed": ["but names differ", "net__fc__weight is other__fc__weight here", "was renamed"],
        "wider": ["node 0 in net.fc differs", "float32[4, 17]", "wider.py:13", "Compile again"],
        "no pef": ["nowhere.pef: there is no file", "or compile the model first"],
        "folder": ["this is a folder", "Give the path of the .pef file itself"],
        "backward": ["backward() of SambaTensor net__", "parameter.sn_grad", "Leave backward()"],
    }.items(),
)
def test_a_mistake_is_one_message(ended, name, parts):
    done = ended[name]
    of_command_line = name in ("no pef", "folder")
    assert done.returncode == (2 if of_command_line else 1)
    assert "Traceback" not in done.stderr
    assert all(part in done.stderr for part in parts), done.stderr
    begin = "net.py run: error: argument -p/--pef: " if of_command_line else ".py:2"
    assert begin in done.stderr
    assert len(done.stderr.splitlines()) <= (1 if of_command_line else 9), done.stderr


@pytest.mark.slow
def test_a_dropped_test_command_ends_with_one_line(ended):
    done = ended["dropped"]
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("test: nothing was tested, because nothing has run on the device")


@pytest.mark.slow
def test_data_parallel_without_a_launcher_names_one(ended):
    done = ended["alone"]
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "python -m samba launch -n 2 net.py run --data-parallel -p net.pef" in line
    assert line.endswith("[deviation: lone-replica]")


@pytest.mark.slow
def test_throughput_counts_the_batch_of_the_inputs(ended):
    """The command line says 1, as nothing was given; the inputs are batches of 4."""
    done = ended["batch"]
    assert done.returncode == 0, done.stderr
    assert "the inputs are batches of 4; batch_size=1 is ignored" in done.stdout
    (rate,) = [line for line in done.stdout.splitlines() if line.startswith("e2e_throughput")]
    throughput, latency = float(rate.split()[1]), float(rate.split()[-2])
    assert throughput * latency == pytest.approx(4)


@pytest.mark.slow
def test_neither_workers_of_loaders_nor_absent_tpus_are_mentioned(ended):
    """Warnings are errors in these processes; the log shows what is information."""
    done = ended["workers"]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_misspelt_command_is_answered_with_the_right_one(capsys):
    assert cli.main(["lunch", "-n", "2", "app.py"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "python -m samba: no command 'lunch', did you mean 'launch'? "
        "The commands are inspect, diff, estimate, memory, export, report, compare and launch; "
        "--help says what they do.\n"
    )
    assert cli.main(["xyz"]) == 2
    assert "no command 'xyz'. The commands are" in capsys.readouterr().err
    assert cli.main(["help"]) == 0
    assert "python -m samba inspect" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("timeline", ["--timeline FILE", "start_timeline", "(docs/run.md, A timeline of runs)"]),
        ("metrics", ["SAMBA_METRICS=1", "(docs/run.md, What has a session done?)"]),
        ("measure-sections", ["python app.py measure-sections", "docs/cost.md"]),
        ("gate", ["python -m bench gate"]),
    ],
)
def test_what_only_pages_tell_of_names_its_page(command, parts, capsys):
    assert cli.main([command, "x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m samba: {command} is not a command; ")
    assert all(part in line for part in parts)


def test_a_script_that_is_not_there_starts_no_replica(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["launch", "-n", "2", "app.py"])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed == f"python -m samba launch: there is no file {Path('app.py').absolute()}\n"


def test_other_forks_are_still_warned_of():
    code = "import os, warnings\nfrom emulator.start import first_device\nfirst_device()\nos.fork()"
    (done,) = forked("", [code])
    assert "RuntimeWarning: os.fork() was called" in done.stderr
