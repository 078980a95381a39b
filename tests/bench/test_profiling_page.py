"""docs/cost.md: the commands on a slow step run, one after the other, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.pages import page
from tests.processes import finished
from tests.samba.inspection.test_page import examples_of

ROOT = Path(__file__).parents[2]
PAGE = page("cost.md", "My step is slow")
_VARIES = (
    (re.compile(r"Loss: [\d.]+"), "Loss: L"),
    (re.compile(r"html: [\d.]+ KiB"), "html: N KiB"),
)


def plain(text: str) -> str:
    """Text without what varies from machine to machine."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return text


@pytest.mark.slow
def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    machine = re.search(r"```toml\n(.*?)```", page("cost.md"), re.DOTALL)
    assert machine is not None
    (tmp_path / "machine.toml").write_text(machine[1])
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
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
            assert plain(found).strip() == plain(output).strip(), command
