"""docs/cost.md: its file is read, its options are all there, and its output is what is printed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from emulator.costs.machine_file import parsed_machine
from pef_schema import read_pef
from samba.inspection.estimate import _parser, as_dict, estimate, run
from tests.pages import page
from tests.processes import finished

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

    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from (
                    () if key in ("flops_per_second", "product_flops_by_dtype") else keys(inner)
                )
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    said = set(re.findall(r"`(\w+)`", PAGE))
    assert set(keys(json.loads(json.dumps(found)))) <= said


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
