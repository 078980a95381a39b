"""On a terminal, a line tells what a start has taken its time for; elsewhere nothing is added."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.counters import Making, Source
from samba.session.start_line import plan_text
from tests.pages import without_sizes
from tests.samba.session.test_timeline import events
from tests.warm import finished, start

APP = """
import sys, torch
import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args

def options(parser):
    parser.add_argument("--width", type=int, default=8)

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = torch.nn.Linear(width, 1)

    def forward(self, x):
        return self.fc(x).square().mean()

args = parse_app_args(sys.argv[1:], common_parser_fn=options)
model = samba.from_torch_model_(Net(args.width))
x = samba.from_torch_tensor(torch.ones(args.batch_size, args.width), name="x", batch_dim=0)
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, (x,), optimizer, name="net")
elif args.command == "run":
    utils.trace_graph(model, (x,), optimizer, pef=args.pef)
    for _ in range(2):
        samba.session.run((x,), model.output_tensors)
    print(model.fc.weight)
"""

Run = Callable[..., str]


def on_terminal(command: list[str], *, folder: Path, trace: str) -> str:
    """What a command shows on a terminal that has no rows and no columns, as those of some tools.

    Args:
        command: The command.
        folder: Where it runs.
        trace: ``SAMBA_TRACE``.
    """
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(near, 1 << 16):
                shown.append(data)
        except OSError:  # nobody has the other end any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    environment = {"EMULATOR_CACHE": str(folder / "cache"), "SAMBA_TRACE": trace}
    process = start(command, cwd=folder, env=os.environ | environment, stdout=far, stderr=far)
    os.close(far)
    code = process.wait(240)
    reader.join(30)
    os.close(near)
    text = b"".join(shown).decode().replace("\r\n", "\n")
    assert code == 0, text
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    (folder / "net.py").write_text(APP)
    return folder


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, str]:
    """What a compile and two runs show on a terminal that says it has no rows."""
    compiles = [sys.executable, "net.py", "compile", "--pef-name=net", "-b", "4"]
    runs = [sys.executable, "net.py", "run", "--pef=out/net/net.pef", "-b", "4"]
    return {
        "compile": on_terminal(compiles, folder=folder, trace=""),
        "first": on_terminal(runs, folder=folder, trace="always"),
        "second": on_terminal(runs, folder=folder, trace=""),
    }


def test_progress_is_shown_on_a_terminal_without_rows(shown: dict[str, str]) -> None:
    assert "\rcompile net: tracing 0/3 |" in shown["compile"]
    assert "\rload net.pef: tracing 1/2 |" in shown["first"]
    assert "\rnet: compiling 3 section steps 0/1 |" in shown["first"]


TIME = r"[\d.]+ m?s"


def start_lines(text: str) -> list[str]:
    """Lines about a start, without their times."""
    return re.findall(r"(?m)^\r*(net: imports .*)$", re.sub(TIME, "T", text).replace("\r", "\n"))


def test_a_compile_says_what_it_took_its_time_for(shown: dict[str, str]) -> None:
    assert start_lines(shown["compile"]) == [
        "net: imports T, tracing T, cutting into sections T, writing the PEF T"
    ]


def test_a_run_says_what_was_traced_and_compiled_and_what_was_there(shown: dict[str, str]) -> None:
    (first,) = start_lines(shown["first"])
    (second,) = start_lines(shown["second"])
    assert first.startswith("net: imports T, traced in T, compiled in T, which ")
    assert second.startswith("net: imports T, remembered in T, ")
    assert second.endswith("read from the cache in T") or first.endswith("no cache can keep")


def test_a_compile_says_how_to_run_what_it_wrote(folder: Path) -> None:
    """Where there is no terminal, the run adds nothing but what is asked for."""
    line = "compile --output-folder o --pef-name a -b 4 --o1 --width=6 --inference --plot"
    done = finished([sys.executable, "net.py", *line.split()], cwd=folder)
    assert without_sizes(done.stdout).splitlines()[-1] == (
        f"PEF file {folder}/o/a/a.pef created: N in T. "
        f"Next: python net.py run -b 4 --width=6 --inference --pef={folder}/o/a/a.pef"
    )
    command = without_sizes(done.stdout).rpartition("Next: python ")[2].split()
    done = finished([sys.executable, *command, "--timeline=t.json"], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"samba\.SambaParameter net__fc__weight containing:\ntensor\(\[\[.*\]\]\)\n"
        r"timeline t\.json created: .*\n",
        done.stdout,
    )
    runs = [event for event in events(folder / "t.json") if event["name"] == "session.run"]
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("source", "text"),
    {
        Source.CACHE: "read from the cache in 3 s",
        Source.COMPILED: "compiled in 3 s, which the cache keeps",
        Source.UNKEPT: "compiled in 3 s, which no cache can keep",
        Source.NO_CACHE: "compiled in 3 s without the cache",
    }.items(),
)
def test_where_an_executable_is_from(source: Source, text: str) -> None:
    assert plan_text(Making(source=source, lowering_seconds=1.0, xla_seconds=2.0)) == text
