"""Processor seconds of a process count those of the processes it has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.suites import start
from bench.suites.start import processor_seconds
from tests.processes import SECONDS

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}], check=True)\n"


@pytest.mark.parametrize("code", [BUSY, PARENT])
def test_a_child_that_has_ended_counts(code: str) -> None:
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SECONDS)
    assert processor_seconds() - before >= 0.3


@pytest.mark.parametrize("code", [BUSY, PARENT])
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes that run are found in /proc")
def test_a_child_that_still_runs_counts_with_its_own(code: str) -> None:
    before = processor_seconds()
    waits = f"{code}print('done', flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{waits}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert processor_seconds() - before >= 0.29  # in ticks of 10 ms
        child.kill()


def test_without_proc_what_has_ended_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(start, "_PROC", tmp_path / "none")
    assert processor_seconds() > 0
