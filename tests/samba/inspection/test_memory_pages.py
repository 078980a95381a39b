"""docs/run.md shows what what their commands print."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import samba
from samba.inspection.memory_command import _parser
from samba.session.metrics import METRICS_VARIABLE, Metrics, Totals
from tests.pages import examples_of, page
from tests.processes import finished
from tests.samba.inspection.test_page import printed

ROOT = Path(__file__).parents[3]
MEMORY = page("run.md", "Where does the memory go?")
METRICS = page("run.md", "What has a session done?")

_VARIES = (
    # Times, and where executables are from, differ between machines.
    (re.compile(r"\d[\d.e+-]* (s|ms|us)\b"), "T"),
    (re.compile(r"(?m)^(executable cache ).*"), r"\1N"),
)


def plain(text: str) -> str:
    for pattern, instead in _VARIES:
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
    options = [o for action in _parser()._actions for o in action.option_strings]
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
        done = finished(script, cwd=tmp_path, env={**env, **more})
        assert done.returncode == 0, done.stderr
    assert plain(done.stderr) == plain(report)


def test_the_commands_of_the_page_on_metrics_are_those_that_there_are() -> None:
    (compiled, _), (run, report) = examples_of(METRICS)
    assert "compile" in compiled and "--pef=out/lenet/lenet.pef" in run
    names = [line[:21].strip() for line in str(samba.session.metrics()).splitlines()]
    assert names == [line[:21].strip() for line in report.splitlines()]
