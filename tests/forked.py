"""Fresh processes at the price of one: what they all import is imported once, then forked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.processes import finished

ROOT = Path(__file__).parents[1]
FORKS = """
import json, os, sys
codes, folder = json.loads(sys.argv[1]), sys.argv[2]
exec(sys.argv[3])
states = []
for number, code in enumerate(codes):
    child = os.fork()
    if child == 0:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        break  # the child ends as the interpreter does
    states.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os.write(1, json.dumps(states).encode())
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit status and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def forked(head: str, codes: Sequence[str], folder: Path) -> list[Ended]:
    """Run each code in a process of its own that is forked after ``head`` has run.

    Args:
        head: Code that all of them begin with: imports.
        codes: Code that needs a fresh process.
        folder: An empty folder for what they print.

    Returns:
        How each process ended.
    """
    done = finished(
        [sys.executable, "-W", "error", "-c", FORKS, json.dumps(codes), str(folder), head],
        cwd=ROOT,
        seconds=240,
    )
    assert done.returncode == 0, done.stderr
    return [
        Ended(status, (folder / f"{i}.out").read_text(), (folder / f"{i}.err").read_text())
        for i, status in enumerate(json.loads(done.stdout))
    ]
