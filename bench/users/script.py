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
    scripts: tuple[Sequence[str], Sequence[str]],
    pefs: tuple[Path, Path],
    settings: GateSettings,
    processes: int,
) -> Samples:
    """Time the sections of two PEFs by scripts, in turns.

    Args:
        scripts: Base's and head's script with its own options; ``measure-sections`` and its
            options are put behind its name.
        pefs: Base and head.
        settings: How; ``rounds`` passes over the schedule in each process.
        processes: Processes of each side.

    Returns:
        Samples of the sections that both have, process after process.

    Raises:
        ScriptFailed: If a script ends with another code than 0.
        BadSectionTimes: If it writes no times.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(processes):
        taken: dict[int, dict[str, list[float]]] = {}
        # Neither side may always come first.
        for side in (0, 1) if turn % 2 else (1, 0):
            taken[side] = _run(scripts[side], pefs[side], settings)
        for name in taken[1]:
            if name in taken[0]:
                # A section may be called more often on one side; samples belong together in pairs.
                count = min(len(taken[0][name]), len(taken[1][name]))
                base, head = found.setdefault(name, ([], []))
                base += taken[0][name][:count]
                head += taken[1][name][:count]
    return found


def _run(script: Sequence[str], pef: Path, settings: GateSettings) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="bench-script-") as folder:
        report = Path(folder) / "sections.json"
        command = [
            *(sys.executable, script[0], "measure-sections"),
            *(f"--pef={pef}", f"--num-iterations={settings.rounds}"),
            # Scripts pass one of the two names on.
            *(f"--bench-report-json={report}", f"--json={report}"),
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
                path=script[0],
                reason="it ended without a report: does it pass --bench-report-json on?",
            )
        return {name: list(t) for name, t in load_section_times(report).seconds.items()}
