"""Pages about commands on PEFs show what these print, and their Python runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import samba
from emulator.costs.machine_file import parsed_machine
from examples import lenet
from pef_schema import read_pef
from samba.__main__ import main
from samba.inspection.estimate import _parser, as_dict, estimate, run
from samba.inspection.memory_command import _parser as _memory_parser
from samba.session.metrics import METRICS_VARIABLE, Metrics, Totals
from tests import processes
from tests.pages import examples_of, page, without_sizes
from tests.samba.inspection.programs import keys_of
from tests.warm import finished

PAGES = {
    "What is in a PEF, and where do two differ?": 11,
    "One page about a program": 2,
    "A PEF in other tools": 7,
}
"""Parts of docs/program.md with the number of commands that each shows at least."""
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_VARIES = (
    # Lines of the source in the file have the reader's path, and so its size and digest vary.
    (re.compile(r"[\d,]+ bytes, format"), "N bytes, format"),
    (re.compile(r"digest [0-9a-f]{16}"), "digest D"),
    (re.compile(r"lines are below .*"), "lines are below F"),
    # Times of sections, and the widths of their columns.
    (re.compile(r"(?m)^( *\d+ +[A-Z+]+ +\w+ +\d+) (?: +\d+\.\d+){4} %"), r"\1 T"),
    (re.compile(r"(?m)(?<=calls) +min ms +median ms +max ms +share"), " T"),
)
_TOOLS = ("ls", "grep")


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints; of a pipe into head, as many lines; of a compilation nothing."""
    line, _, head = command.partition(" | head -")
    words = shlex.split(line)
    if words[0] in _TOOLS:
        done = processes.finished(words, cwd=Path.cwd())
        assert (done.returncode, done.stderr) == (0, ""), command
        return done.stdout
    if words[:2] == ["python", "examples/lenet.py"]:
        samba.session.reset()
        lenet.main(words[2:])
        captured = capsys.readouterr()
        if words[2] == "compile":
            return ""
    else:
        assert words[:3] == ["python", "-m", "samba"], command
        code = main(words[3:])
        captured = capsys.readouterr()
        assert captured.err == "" and code == (words[3] == "diff"), command
    lines = captured.out.splitlines(keepends=True)
    return "".join(lines[: int(head)] if head else lines)


def plain(text: str) -> str:
    """Text without what varies from place to place."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return without_sizes(text)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if PAGES[name] > 10 else ()) for name in PAGES],
)
def test_the_page_shows_what_is_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    text = page("program.md", name)
    shown = examples_of(text)
    assert len(shown) >= PAGES[name]
    for command, output in shown:
        assert plain(printed(command, capsys)) == plain(output), command
    for block in _PYTHON.findall(text):
        exec(compile(block, name, "exec"), {})


# -- docs/cost.md ----------------------------------------------------------------------


ROOT = Path(__file__).parents[3]
PAGE = page("cost.md", "What does it cost, and how fast could it be?")


def block(language: str) -> str:
    """The first block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_machine_of_the_page_is_one():
    machine = parsed_machine(block("toml"), "machine.toml")
    assert machine.caches and len(machine.rates) == 2


def test_every_option_is_on_the_page():
    options = [o for action in _parser()._actions for o in action.option_strings]
    assert {o for o in options if o.startswith("--")} - {"--help"} <= set(
        re.findall(r"`(--[a-z]+)", PAGE)
    )


def test_every_key_of_the_data_is_on_the_page():
    program = read_pef(str(ROOT / "tests/golden/v1_training.pef"))
    machine = parsed_machine(block("toml"), "machine.toml")
    found = as_dict(program, machine, [estimate(program, 0, machine)], "time")
    said = set(re.findall(r"`(\w+)`", PAGE))
    assert keys_of(json.loads(json.dumps(found))) <= said


@pytest.mark.slow
def test_the_output_of_the_page_is_what_is_printed(tmp_path, capsys, monkeypatch):
    command, *_ = (line.split() for line in block("sh").splitlines())
    assert command[:2] == ["python", "examples/lenet.py"]
    script = [sys.executable, ROOT / command[1], *command[2:]]
    done = finished(script, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    (tmp_path / "machine.toml").write_text(block("toml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["out/lenet/lenet.pef", "--machine", "machine.toml"]) == 0
    assert capsys.readouterr().out == block("text")


# -- docs/run.md -----------------------------------------------------------------------


MEMORY = page("run.md", "Where does the memory go?")
METRICS = page("run.md", "What has a session done?")
_VARIES_IN_METRICS = (
    # Times, and where executables are from, differ between machines.
    (re.compile(r"\d[\d.e+-]* (s|ms|us)\b"), "T"),
    (re.compile(r"(?m)^(executable cache ).*"), r"\1N"),
)


def without_times(text: str) -> str:
    for pattern, instead in _VARIES_IN_METRICS:
        text = pattern.sub(instead, text)
    return text


def test_the_page_on_memory_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = examples_of(MEMORY)
    assert len(shown) == 3
    for command, output in shown:
        assert printed(command, capsys) == output, command
    found = json.loads((tmp_path / "stats.json").read_text())
    assert found["format"] == "samba.compiled_stats"


def test_the_report_of_the_session_is_the_one_of_the_page() -> None:
    """Predicted figures and all exact ones; what lies inside is the machine's."""
    session = next(b for b in re.findall(r"```text\n(.*?)```", MEMORY, re.DOTALL))
    predicted = re.search(r"(?m)^predicted +(.*) {2}fwd_0 bckwd_0 opt_sgd0$", session)
    measured = re.search(r"(?m)^measured +(.*) {4}the same$", session)
    assert predicted is not None and measured is not None
    cells = [re.split(r" {2,}", row[1].strip()) for row in (predicted, measured)]
    assert cells[0][1:4] == cells[1][1:4] and len(cells[0]) == len(cells[1]) == 5
    assert f"peak {cells[0][0]}, {cells[0][1]}" in MEMORY  # what the command has printed


def test_every_option_of_the_command_is_on_its_page() -> None:
    options = [o for action in _memory_parser()._actions for o in action.option_strings]
    said = set(re.findall(r"`(--?[a-z]+)", MEMORY))
    assert set(options) - {"-h", "--help", "--output"} <= said


def test_every_key_of_the_reports_is_on_a_page() -> None:
    metrics = Metrics(
        traces=0, trace_seconds=0.0, totals=Totals(timed=1, latest=((1.0, 1.0),)), rank=0, size=1
    ).as_dict()
    keys = set(metrics) | set(metrics["cache"]) | set(metrics["host_seconds"])
    assert sorted(key for key in keys if f"`{key}`" not in METRICS) == []


@pytest.mark.slow
def test_the_page_on_metrics_shows_what_is_printed(tmp_path: Path) -> None:
    """In processes of their own, as a person runs them."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    (compiled, nothing), (run, report) = examples_of(METRICS)
    assert nothing == "" and run.startswith(f"{METRICS_VARIABLE}=1 python examples/lenet.py")
    for command, more in ((compiled, {}), (run.partition(" ")[2], {METRICS_VARIABLE: "1"})):
        words = shlex.split(command)
        assert words[0] == "python"
        script = [sys.executable, ROOT / words[1], *words[2:]]
        done = processes.finished(script, cwd=tmp_path, env={**env, **more})
        assert done.returncode == 0, done.stderr
    assert without_times(done.stderr) == without_times(report)


def test_the_commands_of_the_page_on_metrics_are_those_that_there_are() -> None:
    (compiled, _), (run, report) = examples_of(METRICS)
    assert "compile" in compiled and "--pef=out/lenet/lenet.pef" in run
    names = [line[:21].strip() for line in str(samba.session.metrics()).splitlines()]
    assert names == [line[:21].strip() for line in report.splitlines()]
