"""Pages about speed: what they say of processors, profiles and the gate."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import samba
from bench import user_gate
from bench.__main__ import _parser, main
from bench.gate import ROOT, GateSettings, Samples, Side
from bench.measurement import FULL
from bench.process import case_of
from emulator.kept_files import CACHE_VARIABLE
from tests.bench.simulated import Machine
from tests.pages import examples_of, page, without_sizes
from tests.warm import finished

PAGE = page("cost.md", "My step is slow")
_VARIES = ((re.compile(r"Loss: [\d.]+"), "Loss: L"),)


def environment(folder: Path) -> dict[str, str]:
    """That of a person: what one command compiles, the next one finds."""
    return {**os.environ, "PYTHONPATH": str(ROOT), CACHE_VARIABLE: str(folder / "kept")}


@pytest.mark.slow
def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    machine = re.search(r"```toml\n(.*?)```", page("cost.md"), re.DOTALL)
    assert machine is not None
    (tmp_path / "machine.toml").write_text(machine[1])
    env = environment(tmp_path)
    env.pop("COLUMNS", None)
    shown = examples_of(PAGE)
    assert len(shown) == 9
    for command, output in shown:
        line, _, end = command.partition(" | ")
        words = shlex.split(line)
        assert words[0] == "python"
        done = finished([sys.executable, *words[1:]], cwd=tmp_path, env=env)
        # Times of two runs are what they are.
        assert done.returncode in ((0, 1) if words[3] == "compare" else (0,)), done.stderr
        lines = done.stdout.splitlines(keepends=True)
        if end:
            number = int(end.partition("-")[2])
            lines = lines[:number] if end.startswith("head") else lines[-number:]
        if output:
            # The progress of steps is written over itself.
            found = "".join(lines).rpartition("\r")[2]
            found, output = (without_sizes(text, _VARIES).strip() for text in (found, output))
            assert found == output, command


PERFORMANCE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")


def test_commands_of_the_performance_page_print_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    shown = examples_of(PERFORMANCE)
    assert shown
    for command, output in shown:
        line, _, head = command.partition(" | head -")
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "bench"], command
        assert main(words[3:]) == 0
        printed = capsys.readouterr().out.splitlines(keepends=True)
        assert "".join(printed[: int(head)]) == output, command


GATE = page("cost.md", "Is my program slower than before?")
_GATE_VARIES = (
    (re.compile(r"that it took on .* when"), "that it took on P when"),
    (re.compile(r"\d+\.\d+(e[-+]\d+)?"), "N"),
    (re.compile(r" +"), " "),
)
_VERDICT = re.compile(r" (slower|faster|asked again)$", re.MULTILINE)
"""What is said of one section for its times, which are what they are."""
_ASKED = re.compile(r"  asked again, all .*:\n(  .*\n)+")
"""What a machine that is not quiet has asked once more."""


def plain_gate(text: str) -> str:
    """Text without what varies from machine to machine."""
    return without_sizes(text, _GATE_VARIES)


def by_script(
    scripts: tuple[list[str], list[str]],
    pefs: tuple[Path, Path],
    settings: GateSettings,
    processes: int,
) -> Samples:
    """Takes the place of scripts, which time sections alone."""
    assert all(Path(words[0]).is_file() for words in scripts)
    sides = tuple(Side(case=case_of(pef), tree=pef.parent) for pef in pefs)
    found = Machine(4)((sides[0], sides[1]), settings, processes)
    return {name: both for name, both in found.items() if name != FULL}


@pytest.mark.slow
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import lenet  # not for whoever collects tests: it loads scikit-learn

    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr(user_gate, "measure_sides", Machine(4))
    monkeypatch.setattr(user_gate, "measure_script", by_script)
    shown = examples_of(GATE)
    assert len(shown) >= 8
    for command, output in shown:
        line, _, chosen = command.partition(" | grep -E ")
        words = shlex.split(line)
        if words[:2] == ["python", "examples/lenet.py"]:
            samba.session.reset()
            lenet.main([*words[2:], *["--num-iterations=3"] * (words[2] != "compile")])
            capsys.readouterr()
            continue
        assert words[:3] == ["python", "-m", "bench"], command
        asked = words[3] == "compare"
        assert main(words[3:]) in ((0, 1) if asked else (0,)), command
        printed = capsys.readouterr()
        assert printed.err == "", command
        assert output, f"{command}: the page does not show what it prints"
        lines = printed.out.splitlines(keepends=True)
        found = plain_gate("".join(x for x in lines if re.search(chosen.strip('"'), x)))
        if asked:
            found, output = (_VERDICT.sub("", text) for text in (found, plain_gate(output)))
        assert found == plain_gate(output), command


@pytest.mark.slow
def test_its_first_commands_on_this_machine(tmp_path: Path) -> None:
    """Compiled, kept, and held against itself, by real processes that take real times.

    By one process of each side: how the others are asked, a simulated machine tells.
    """
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = environment(tmp_path)
    (compiled, _), *others = examples_of(GATE)[:3]
    for command, output in ((compiled, ""), *others):
        words = shlex.split(command)
        words += ["--processes=1"] * ("gate" in words)
        # Beside other tests a section may be asked again, in more processes.
        done = finished([sys.executable, *words[1:]], cwd=tmp_path, env=env, seconds=550)
        assert done.returncode == 0, done.stdout + done.stderr
        if output:
            found = _VERDICT.sub("", plain_gate(_ASKED.sub("", done.stdout)))
            assert found == plain_gate(output), command


def test_the_page_names_every_option_there_is() -> None:
    (gate,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = {
        name: {o for action in parser._actions for o in action.option_strings}
        for name, parser in gate.choices.items()
    }
    said = re.findall(r"python -m bench (gate|selftest|compare)([^`#\n]*)", GATE)
    assert len(said) >= 6
    for command, rest in said:
        assert set(re.findall(r"(?<=\s)--[a-z-]+", rest)) <= known[command], rest
    for option in known["gate"] - {"-h", "--help", "--model"}:
        assert f"{option}" in GATE, option
