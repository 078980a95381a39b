"""docs/data_parallel.md: a script goes on from its checkpoint with another number of replicas."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.pages import page
from tests.processes import finished
from tests.samba.distributed.processes import clean_environment

PAGE = page("data_parallel.md", "Replicas that come and go")


@pytest.mark.slow
def test_the_script_of_the_page(tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    (tmp_path / "train.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    run = ["train.py", "run", "--data-parallel", "--pef=out/train/train.pef"]
    said = []
    for command in (
        [sys.executable, "train.py", "compile", "--data-parallel", "--pef-name=train"],
        [*torchrun, "--nproc-per-node=2", *run, "--epochs=2"],
        [*torchrun, "--nproc-per-node=1", *run, "--epochs=3"],
    ):
        done = finished(command, cwd=tmp_path, env=clean_environment(CCL_TIMEOUT="60"), seconds=240)
        assert done.returncode == 0, done.stdout + done.stderr
        said += re.findall(r"epoch .* replicas", done.stdout)
    assert said == [
        "epoch 0 from sample 0 with 2 replicas",
        "epoch 1 from sample 0 with 2 replicas",
        "epoch 2 from sample 0 with 1 replicas",
    ]
