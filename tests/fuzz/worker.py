"""What a process does that tries cases.

It reads a JSON line for each batch of cases and answers with a line for each case, so that whoever
reads them knows which case it was on when it died or fell silent.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType

from tests.fuzz import plants
from tests.fuzz.outcome import Outcome
from tests.pef_schema.fuzz.cases import Case
from tests.pef_schema.fuzz.seeds import load_seeds
from tests.processes import peak_bytes

TARGETS = {
    "reading": "tests.pef_schema.fuzz.reading",
    "run": "tests.emulator.fuzz.running",
    "op": "tests.emulator.fuzz.op_running",
    "opinfo": "tests.opinfo.runner",
    "variants": "tests.sweeps.op_worker",
}
"""Modules with a function ``attempt(name, pef)`` and the limit of memory ``SPARE`` in bytes.

The first two try a file, of which ``name`` is the case. ``op`` tries a call of an operation, and
``opinfo`` and ``variants`` an entry of torch's database; they prepare their process by a function
of their own.
"""

Attempt = Callable[[str, bytes], Outcome]


def main(target: str, plant: str = "") -> None:
    """Answer batches until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a case prints is not an answer
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    module = ready(target)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if plant:
        plants.PLANTS[plant]()
    print(json.dumps({"ready": True, "cpu": time.process_time()}), file=answers)
    for line in sys.stdin:
        for name in json.loads(line):
            pef = Case.parse(name).build() if target in ("reading", "run") else b""
            outcome, seconds = _limited(module.attempt, name, pef, module.SPARE)
            print(
                outcome.as_json(
                    case=name,
                    seconds=seconds,
                    cpu=time.process_time(),
                    peak=peak_bytes(),
                ),
                file=answers,
            )


def ready(target: str) -> ModuleType:
    """Load what tries a target: while nothing is planted yet, and before memory is counted."""
    module = importlib.import_module(TARGETS[target])
    getattr(module, "prepare", load_seeds)()
    return module


def _limited(attempt: Attempt, name: str, pef: bytes, spare: int) -> tuple[Outcome, float]:
    """Try a case with so much address space: what is in use, three times the file, and spare.

    Returns:
        The outcome, and the seconds that it took once the file was made.
    """
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * len(pef) + spare, hard))
    started = time.perf_counter()
    try:
        outcome = attempt(name, pef)
        return outcome, time.perf_counter() - started
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
