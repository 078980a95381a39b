"""A PEF and a kept base of it, for tests of the gate; workers that start soon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from bench.gate import ROOT
from bench.measurement import FULL
from bench.section_times import keep_base
from pef_schema import write_pef
from tests import warm
from tests.samba.inspection.programs import chain

SECTIONS = ("a.relu", "b.sigmoid", "c.tanh")
TIMES = {"fwd_0": [2e-3, 1e-3, 3e-3], FULL: [5e-3]}
"""Seconds that sections took when the base was kept."""


@pytest.fixture
def pef(tmp_path: Path) -> Path:
    """A PEF of three sections."""
    path = tmp_path / "net.pef"
    write_pef(str(path), chain(SECTIONS))
    return path


@pytest.fixture
def base(tmp_path: Path, pef: Path) -> Path:
    """A kept base of it."""
    path = tmp_path / "base.json"
    keep_base(path, pef, TIMES)
    return path


class Forked:
    """A worker that is forked from a process with torch, whose threads are those of that process.

    What jax and this project read of its variables is as ever: it imports them itself.
    """

    def __init__(
        self, command: Sequence[str], *, stderr: IO[str], cwd: Path | None, env: Mapping[str, str],
        **_: Any,
    ) -> None:  # fmt: skip
        (asked, asking), (answers, answering) = os.pipe(), os.pipe()
        request = {"args": command[1:], "cwd": str(cwd or ROOT), "env": dict(env)}
        request |= {"session": False, "quick": True, "host": None}
        self._process = warm.TORCH.start(request, [answering, stderr.fileno(), asked])
        os.close(asked)
        os.close(answering)
        self.stdin, self.stdout = os.fdopen(asking, "w"), os.fdopen(answers)
        self.kill, self.wait = self._process.kill, self._process.wait

    def communicate(self, timeout: float) -> None:
        """Wait for its end."""
        self.wait(timeout)
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import no torch of their own, and torch's compiler starts no processes."""
    started = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE)
    monkeypatch.setattr("bench.process.subprocess", started)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
