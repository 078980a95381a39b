"""docs/run.md: the commands on timelines print what it shows, and write it at the end."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from emulator.kept_files import CACHE_VARIABLE
from samba.support.timeline import Track
from tests.pages import page, without_sizes
from tests.samba.session.test_timeline import events
from tests.warm import finished

ROOT = Path(__file__).parents[3]
PAGE = page("run.md", "A timeline of runs")
_VARIES = (
    # The last digits of a loss and what XLA makes of a program depend on the processor.
    (re.compile(r"\d+\.\d+"), "X"),
    (re.compile(r"(kernels\.json created: \w+), \d+ events"), r"\1, N events"),
)


def masked(text: str) -> str:
    """Without what varies from machine to machine."""
    text = without_sizes(text)
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return text.strip()


@pytest.mark.slow
def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    kept = {CACHE_VARIABLE: str(tmp_path / "kept")}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **kept}
    commands = 0
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            done = finished([sys.executable, *shlex.split(command)[1:]], cwd=tmp_path, env=env)
            assert done.returncode == 0, done.stderr
            assert masked(done.stdout) == masked(output) or not output, command
            commands += 1
    assert commands == 4
    plain, more = (tmp_path / name for name in ("timeline.json", "kernels.json"))
    assert 0 < plain.stat().st_size < more.stat().st_size
    names = {e["name"] for e in events(plain) if e["tid"] == Track.SECTIONS}
    assert {"fwd_0", "bckwd_0", "opt_sgd0"} <= names
