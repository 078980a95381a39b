"""A user's own script on both sides: ``measure-sections`` with its own inputs, again and again."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.errors import BadSectionTimes, ScriptFailed
from bench.gate import GateSettings, Samples
from bench.process import ANSWER_SECONDS, worker_environment
from bench.users.section_times import load_section_times

__all__ = ["measure_script"]


def measure_script(
    script: Sequence[str], base: Path, head: Path, settings: GateSettings, processes: int
) -> Samples:
    """Time the sections of two PEFs by a script, in turns.

    Args:
        script: The script and its own options; ``measure-sections`` and its options are put behind
            its name.
        base, head: The PEFs.
        settings: How; ``rounds`` passes over the schedule in each process.
        processes: Processes of each side.

    Returns:
        Samples of the sections that both have.

    Raises:
        ScriptFailed: If the script ends with another code than 0.
        BadSectionTimes: If it writes no times.
    """
    found: tuple[dict[str, list[float]], dict[str, list[float]]] = {}, {}
    sides = ((0, base), (1, head))
    for turn in range(processes):
        # Neither side may always come first.
        for side, pef in sides if turn % 2 else sides[::-1]:
            for name, seconds in _run(script, pef, settings).items():
                found[side].setdefault(name, []).extend(seconds)
    both = [name for name in found[1] if name in found[0]]
    return {name: (found[0][name], found[1][name]) for name in both}


def _run(script: Sequence[str], pef: Path, settings: GateSettings) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="bench-script-") as folder:
        report = Path(folder) / "sections.json"
        command = [
            *(sys.executable, script[0], "measure-sections"),
            *(f"--pef={pef}", f"--json={report}", f"--num-iterations={settings.rounds}"),
            *script[1:],
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_SECONDS,
                env=worker_environment(settings.threads),
            )
        except subprocess.TimeoutExpired:
            raise ScriptFailed(
                script=script[0], reason=f"it did not end in {ANSWER_SECONDS:g} s"
            ) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise ScriptFailed(script=script[0], reason=f"code {done.returncode}: {lines[-1]}")
        if not report.exists():
            raise BadSectionTimes(
                path=script[0], reason="it ended without a report: does it pass --json on?"
            )
        return {name: list(t) for name, t in load_section_times(report).seconds.items()}
