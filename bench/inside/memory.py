"""Peak memory of a step, as the operating system sees it.

The process first trains a tiny model, so that its libraries load and start all they need; what is
resident then is not the model's. After some
steps everything that is free goes back to the system (``malloc_trim``), the kernel's high-water
mark is reset (``/proc/self/clear_refs``) and more steps run: the mark is the peak of a steady step.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from bench.inside import Contestant
from bench.models import HOST
from bench.peers import prepare
from emulator.memory.allocator import give_back_free_memory

TINY = HOST["host-1"]

_STATUS = Path("/proc/self/status")


def status_bytes(field: str, text: str) -> int:
    """A size from the text of ``/proc/self/status``.

    Example:
        >>> status_bytes("VmHWM", "VmPeak:	 8 kB\\nVmHWM:	 3 kB\\n")
        3072
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise LookupError(f"/proc/self/status has no {field}; memory is measured on Linux only")


def _give_back() -> None:
    gc.collect()
    give_back_free_memory()


def memory(contestant: Contestant, warm: int, count: int) -> dict[str, Any]:
    """Measure the peak of some steps; only as the first request.

    Args:
        contestant: Who runs.
        warm: Steps before.
        count: Steps to watch.

    Returns:
        ``baseline``: bytes resident with the libraries at work; ``peak``: the high-water mark.
    """
    convert, tiny_step = prepare(contestant.contender, TINY)
    tiny_step(convert(TINY.batches()[0]))
    del convert, tiny_step
    _give_back()
    baseline = status_bytes("VmRSS", _STATUS.read_text())
    step = contestant.step
    for batch in contestant.batches(warm):
        step(batch)
    todo = contestant.batches(count)
    _give_back()
    Path("/proc/self/clear_refs").write_text("5")
    for batch in todo:
        step(batch)
    return {"baseline": baseline, "peak": status_bytes("VmHWM", _STATUS.read_text())}
