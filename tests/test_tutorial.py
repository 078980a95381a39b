"""docs/tutorial.md: its script does what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from tests.warm import finished

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
_LOSS = re.compile(r"loss \d\.\d{3}, \d+\.\d%")


def masked(text: str) -> str:
    """Without numbers that depend on the processor in their last digits."""
    return _LOSS.sub("loss L, R%", text)


def test_the_script_of_the_page(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "digits.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown: list[str] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            assert command.startswith("python digits.py")
            words = [sys.executable, *shlex.split(command)[1:]]
            done = finished(words, cwd=tmp_path, env=env)
            assert done.returncode == 0, done.stderr
            if output:
                assert masked(done.stdout) == masked(output), command
                shown += _LOSS.findall(done.stdout)
    assert len(shown) == 5, "three epochs, and two more after the checkpoint"
    rights = [float(line.rpartition(" ")[2].rstrip("%")) for line in shown]
    assert min(rights) > 75
    assert rights[-1] > 85
