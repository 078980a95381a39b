"""No test waits without end, and a forked process runs a command as one does that Python starts."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import processes, warm
from tests.processes import Hung, came, ended, finished, joined, line_of, said

TESTS = Path(__file__).parent
SLEEPS = ["sh", "-c", "echo begun; exec sleep 60"]
"""It begins at once, whatever else runs."""
ENDLESS = {
    "fuzz/pool.py": 1,  # threads that watch over their cases themselves
}
"""How many waits without a limit a file may have."""


MAY_WAIT = re.compile(r"subprocess|wait|communicate|join\s*\(\s*[)#\\]")
"""What is in the text of every file that waits without a limit; most files are not parsed."""


def waits(text: str) -> list[int]:
    """Lines that wait for a process, a thread or an event without a limit."""
    found: list[int] = []
    if not MAY_WAIT.search(text):
        return found
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        whose = ast.unparse(node.func.value)
        if whose == "samba.session":
            continue  # its join is a context for replicas
        bare = not node.args and not node.keywords
        runs = whose == "subprocess" and node.func.attr != "Popen"
        limited = any(keyword.arg == "timeout" for keyword in node.keywords)
        if (runs and not limited) or (bare and node.func.attr in ("wait", "join", "communicate")):
            found.append(node.lineno)
    return found


def test_every_wait_has_a_limit() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): lines
        for path in TESTS.rglob("*.py")
        if (lines := waits(path.read_text()))
    }
    assert {path: len(lines) for path, lines in found.items()} == ENDLESS, found


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("subprocess.run(['x'])", 1),
        ("subprocess.run(['x'], timeout=3)", 0),
        ("subprocess.check_output(['x'])", 1),
        ("process.wait()", 1),
        ("process.wait(3)", 0),
        ("process.communicate(input='x', timeout=3)", 0),
        ("thread.join()", 1),
        ("thread.join(\n)", 1),
        ("thread.join(  # for ever\n)", 1),
        ("', '.join(names)", 0),
        ("Barrier(2).wait()", 1),
    ],
)
def test_the_search_bites(line: str, count: int) -> None:
    assert len(waits(line)) == count


def test_who_hangs_is_named() -> None:
    with pytest.raises(Hung, match=r"exec sleep.* did not end in 1 s(?s:.*)begun"):
        finished(SLEEPS, seconds=1)
    process = subprocess.Popen(SLEEPS, stdout=subprocess.PIPE, text=True)
    with process:
        assert line_of(process) == "begun\n"
        with pytest.raises(Hung, match=r"exec sleep.* did not end in 0\.01 s"):
            said(process, seconds=0.01)
        assert ended(process) < 0
    process = subprocess.Popen(SLEEPS, stdout=subprocess.PIPE, text=True)
    with process:
        line_of(process)
        assert line_of(process, seconds=0.01) == ""
        assert ended(process) < 0
    event = threading.Event()
    with pytest.raises(Hung, match="did not come"):
        came(event, seconds=0.01)
    thread = threading.Thread(target=event.wait, args=(20,), name="slow", daemon=True)
    thread.start()
    with pytest.raises(Hung, match="slow did not end"):
        joined(thread, seconds=0.01)
    event.set()
    joined(thread)


def test_a_failure_says_what_was_printed() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        finished([sys.executable, "-c", "raise SystemExit('why')"], check=True)
    assert caught.value.__notes__ == ["why\n"]


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
    env = {**os.environ, **warm.for_children(), "SAID": "yes", "PYTHONPATH": str(ROOT)}
    ways = [run(command, cwd=tmp_path, env=env) for run in (warm.finished, processes.finished)]
    in_place = [env["WARM_PYTHON"], *command[1:]]
    ways.append(processes.finished(in_place, cwd=tmp_path, env=env))
    assert ways[0].stdout == ways[1].stdout == ways[2].stdout != ""
    assert ways[0].stderr == ways[1].stderr == ways[2].stderr
    assert [way.returncode for way in ways] == [3, 3, 3]


WAITS = """
import os, signal, sys, time
def heard(number, _):
    print("heard", number, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, heard)
print(os.getpid(), os.path.basename(sys.executable), flush=True)
while True:  # a signal that comes just before a sleep is heard after it
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_pass_what_is_in_the_place_of_the_interpreter(number: signal.Signals) -> None:
    env = os.environ | warm.for_children()
    command = [env["WARM_PYTHON"], "-u", "-c", WAITS]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    pid = int(line_of(process).split()[0])
    assert pid != process.pid
    process.send_signal(number)
    heard = "" if number is signal.SIGKILL else f"heard {signal.SIGTERM.value}\n"
    assert said(process)[0] == heard
    assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + processes.SECONDS_TO_END
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_ends_as_python_does() -> None:
    """Also where the libraries that it shares with others stay as they are at its end."""
    code = """
import atexit, sys, threading, time

def late():
    time.sleep(0.1)
    print("thread")

atexit.register(print, "exit handler")
threading.Thread(target=late).start()
sys.stdout.write("unflushed ")
sys.exit(5)
"""
    command = [sys.executable, "-c", code]
    done = warm.finished(command)
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == "unflushed thread\nexit handler\n"


def test_everything_is_imported_before() -> None:
    code = "import sys; print(all(m in sys.modules for m in ('torch', 'jax', 'samba')))"
    assert warm.finished([sys.executable, "-c", code]).stdout == "True\n"


def test_an_error_and_a_signal_end_it() -> None:
    failed = warm.finished([sys.executable, "-c", "1 / 0"])
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    code = f"import os; os.kill(os.getpid(), {signal.SIGKILL.value})"
    assert warm.finished([sys.executable, "-c", code]).returncode == -signal.SIGKILL


def test_who_hangs_when_forked_is_named() -> None:
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
    with pytest.raises(ValueError, match="expected this Python without options"):
        warm.finished([sys.executable, "-W", "error", "-c", ""])
