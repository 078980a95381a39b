"""A forked process runs a command as one does that Python starts."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests import processes, warm
from tests.processes import Hung

ROOT = Path(__file__).parents[1]
SAYS = """
import os, sys, __main__
print(__name__, sys.argv, sys.path[0], os.getcwd(), os.environ["SAID"])
print(vars(__main__).get("__file__"), __main__ is sys.modules["__main__"], file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["script", "relative", "code", "module"])
def test_as_python_starts_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    how = {
        "script": [str(tmp_path / "says.py")],
        "relative": ["says.py"],
        "code": ["-c", SAYS],
        "module": ["-m", "says"],
    }
    command = [sys.executable, *how[kind], "a", "-b"]
    env = {**os.environ, "SAID": "yes", "PYTHONPATH": str(ROOT)}
    ways = [run(command, cwd=tmp_path, env=env) for run in (warm.finished, processes.finished)]
    assert ways[0].stdout == ways[1].stdout != ""
    assert ways[0].stderr == ways[1].stderr
    assert [way.returncode for way in ways] == [3, 3]


def test_everything_is_imported_before() -> None:
    code = "import sys; print(all(m in sys.modules for m in ('torch', 'jax', 'samba')))"
    assert warm.finished([sys.executable, "-c", code]).stdout == "True\n"


def test_an_error_and_a_signal_end_it() -> None:
    failed = warm.finished([sys.executable, "-c", "1 / 0"])
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    code = f"import os; os.kill(os.getpid(), {signal.SIGKILL.value})"
    assert warm.finished([sys.executable, "-c", code]).returncode == -signal.SIGKILL


def test_who_hangs_is_named() -> None:
    code = "import time; print('begun', flush=True); time.sleep(60)"
    with pytest.raises(Hung, match=r"time\.sleep.* did not end in 1 s(?s:.*)begun"):
        warm.finished([sys.executable, "-c", code], seconds=1)


def test_it_leads_a_session_if_it_is_asked_to() -> None:
    code = "import time; time.sleep(60)"
    process = warm.start(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ,
        stdout=1,
        stderr=2,
        new_session=True,
    )
    try:
        while os.getsid(process.pid) != process.pid:
            assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL


def test_what_is_read_at_the_import_is_refused() -> None:
    with pytest.raises(ValueError, match="JAX_PLATFORMS: read when modules are imported"):
        warm.finished([sys.executable, "-c", ""], env={**os.environ, "JAX_PLATFORMS": "tpu"})
    with pytest.raises(ValueError, match="wanted this Python without options"):
        warm.finished([sys.executable, "-W", "error", "-c", ""])
