"""The metrics of a process, written when it ends, for whoever asks by an environment variable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pef_schema.atomic import write_atomically
from pef_schema.errors import SambaError
from pef_schema.printable import json_text, printable, say_text
from samba.abexit import SambaAtexit
from samba.session.metrics import Metrics

__all__ = ["METRICS_VARIABLE", "report_at_exit"]

METRICS_VARIABLE = "SAMBA_METRICS"
"""Environment variable that asks for metrics at the end of the process: ``1`` for a report on
standard error, or a file, which gets JSON if its name ends in ``.json``; ``0`` for none."""


def report_at_exit(metrics: Callable[[], Metrics]) -> bool:
    """Have metrics written when the process ends, if the environment asks for them.

    Args:
        metrics: What tells them then.

    Returns:
        Whether it does.
    """
    wanted = os.environ.get(METRICS_VARIABLE, "").strip()
    if wanted in ("", "0"):
        return False
    SambaAtexit.register(_write, wanted, metrics, os.getpid())
    return True


def _write(wanted: str, metrics: Callable[[], Metrics], process: int) -> None:
    if os.getpid() != process:
        return  # a child that was forked has done none of it
    found = metrics()
    if wanted == "1":
        say_text(str(found), file=sys.stderr)
        return
    path = _of_rank(Path(wanted), found)
    text = json_text(found.as_dict(), indent=2) if path.suffix == ".json" else printable(str(found))
    try:
        write_atomically(str(path), [f"{text}\n".encode()])
    except SambaError as error:
        say_text(f"error: {METRICS_VARIABLE}: {error}", file=sys.stderr)


def _of_rank(path: Path, found: Metrics) -> Path:
    """A file of its own for each of several replicas.

    Example:
        >>> from samba.session.metrics import Totals
        >>> found = Metrics(traces=1, trace_seconds=0.5, totals=Totals(), rank=1, size=2)
        >>> _of_rank(Path("metrics.json"), found).name
        'metrics.rank1.json'
    """
    if found.size == 1:
        return path
    return path.with_name(f"{path.stem}.rank{found.rank}{path.suffix}")
