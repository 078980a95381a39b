"""Peak memory of a step in a fresh process, as the operating system sees it.

The process first trains a tiny model, so that its libraries load and start all they need; what is
resident then is not the model's. After some
steps everything that is free goes back to the system (``malloc_trim``), the kernel's high-water
mark is reset (``/proc/self/clear_refs``) and more steps run: the mark is the peak of a steady step.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import WorkerFailed
from bench.measurement import ALLOC, OURS, Results
from bench.memory_parts import Resident, parts_of, resident_now
from bench.models import HOST, suite_of
from bench.peers import CONTENDERS, REFERENCE, prepare
from bench.process import Contestant
from bench.suites import Settings
from emulator.counters import Source
from emulator.memory.allocator import give_back_free_memory

TINY = HOST["host-1"]

LATER_PLANS = "plans compiled by a later process"
"""Plans that were not in the cache although the suite of the case had run before."""

_STATUS = Path("/proc/self/status")


def memory(settings: Settings, results: Results) -> None:
    """Measure the peak of a step, of this project and of eager unless told whose.

    One process at a time: beside another one the peaks came out lower. What an earlier suite left
    in the compilers' caches is used, and a process that compiles nothing needs less.

    Adds ``peak``, what the model needs beyond the started libraries, and ``process``, everything;
    of this project also what ``peak`` consists of, and for a case whose steps were timed before
    ``LATER_PLANS``.
    """
    for case in settings.cases:
        settings.tell(f"memory: {case}")
        everyone = set(settings.contenders) == set(CONTENDERS)
        for name in (OURS, REFERENCE) if everyone else settings.contenders:
            if name.endswith(ALLOC):
                continue
            try:
                with settings.worker(case, name) as worker:
                    result = worker.ask(peak_memory, warm=3, count=5)
            except WorkerFailed as error:
                if name == OURS:
                    raise
                results.fail("memory", case, name, error.reason)
                continue
            net = result["peak"] - result["baseline"]
            results.add("memory", case, name, "peak", "B", [net])
            results.add("memory", case, name, "process", "B", [result["peak"]])
            for part, size in result["parts"].items():
                results.add("memory", case, name, part, "B", [size])
            if name == OURS and results.get(suite_of(case), case, OURS, "step"):
                results.add("memory", case, OURS, LATER_PLANS, "plans", [result["compiled"]])


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


def peak_memory(contestant: Contestant, warm: int, count: int) -> dict[str, Any]:
    """Measure the peak of some steps; only as the first request.

    Args:
        contestant: Who runs.
        warm: Steps before.
        count: Steps to watch.

    Returns:
        ``baseline``: bytes resident with the libraries at work; ``peak``: the high-water mark;
        ``compiled``: this project's plans that were not in the cache; ``parts``: what this
        project's peak consists of beyond the baseline.
    """
    convert, tiny_step = prepare(contestant.contender, TINY)
    tiny_step(convert(TINY.batches()[0]))
    del convert, tiny_step
    _give_back()
    baseline, before = status_bytes("VmRSS", _STATUS.read_text()), resident_now()
    step = contestant.step
    for batch in contestant.batches(warm):
        step(batch)
    todo = contestant.batches(count)
    _give_back()
    Path("/proc/self/clear_refs").write_text("5")
    for batch in todo:
        step(batch)
    peak = status_bytes("VmHWM", _STATUS.read_text())
    ours = contestant.contender == OURS
    parts = _parts(before, peak - baseline) if ours else {}
    compiled = _compiled_plans() if ours else 0
    return {"baseline": baseline, "peak": peak, "compiled": compiled, "parts": parts}


def _parts(before: Resident, peak: int) -> Mapping[str, int]:
    from bench.peers.ours import loaded  # noqa: PLC0415  # the library of the contender
    from samba.session.loading import LoadedModel  # noqa: PLC0415  # as above
    from samba.session.memory import session_memory  # noqa: PLC0415  # as above

    program = loaded()
    assert isinstance(program, LoadedModel)  # no case has several graphs
    memory = session_memory(program)
    plans = [plan.measured for plan in memory.plans if plan.measured is not None]
    return parts_of(
        before,
        resident_now(),
        peak=peak,
        held=sum(size for _, size in memory.held),
        temporary=max((plan.temp for plan in plans), default=0),
        tensors={t.data_ptr(): t.nbytes for t in program.model.state_dict().values()},
    )


def _compiled_plans() -> int:
    from bench.peers.ours import loaded  # noqa: PLC0415  # the library of the contender

    sources = loaded().device.counters.sources
    return sum(count for source, count in sources.items() if source is not Source.CACHE)
