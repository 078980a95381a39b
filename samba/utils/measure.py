"""Measuring: throughput and latency of a program, and times of its sections."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pef_schema.atomic import write_atomically
from pef_schema.module_paths import root_of, short_paths
from pef_schema.printable import json_text, say, say_text
from pef_schema.program_facts import (
    modules_of,
    operations_of,
    operations_text,
    owners,
    section_types,
)
from samba.errors import ArgumentError, described
from samba.profiler import PROFILER
from samba.session.process import session
from samba.support.deviations import hearing
from samba.support.given import as_number, flag_of, path_of, whole_of
from samba.support.layout import table
from samba.support.nesting import leaves
from samba.support.progress import counted
from samba.support.timeline import SectionClock
from samba.utils.argparser import note_measured

if TYPE_CHECKING:
    from samba.session.loaded import Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTime:
    """Times of one section.

    Args:
        section_id: Its id.
        name: Its name.
        type: Its types, e.g. ``FWD``.
        calls: How often it was timed.
        min_ms, median_ms, max_ms: Wall time of a call in milliseconds.
        share: Its median as a fraction of the sum of all medians.
        modules: Paths of the modules that it computes or updates.
        operations: Its operations with how often each occurs.
        samples_ms: The wall time of each call in milliseconds, in their order.
    """

    section_id: int
    name: str
    type: str
    calls: int
    min_ms: float
    median_ms: float
    max_ms: float
    share: float
    modules: tuple[str, ...] = ()
    operations: tuple[tuple[str, int], ...] = ()
    samples_ms: tuple[float, ...] = ()


def measure_performance(
    model: torch.nn.Module,
    inputs: Any,
    batch_size: int = 1,
    n_chips: int = 1,
    inference: bool = False,
    run_graph_only: bool = False,
    n_iterations: int = 100,
    json: str | None = None,
    compiled_stats_json: str | None = None,
    data_parallel: bool = False,
    reduce_on_rdu: bool = False,
    use_sambaloader: bool = False,
    min_duration: float = 0.0,
    json_counters: str = "",
    set_output_grads: bool | None = None,
) -> tuple[float, float]:
    """Time runs of the loaded program and print throughput and latency.

    One run warms up. The weights are trained by it, as on hardware.

    Args:
        model: The traced model, or one like it.
        inputs: Inputs to feed in every iteration.
        batch_size: Samples in one run; where the inputs have another batch, theirs counts.
        n_chips: Accepted.
        inference: Run the FWD sections only.
        run_graph_only: Transfer neither inputs nor outputs.
        n_iterations: Runs to time, at least 1.
        json: Path of a report to write.
        compiled_stats_json: Path of that report with the memory of each plan (``memory``) and the
            session's metrics (``metrics``).
        data_parallel, reduce_on_rdu: As in ``session.run``. Every replica measures itself, and
            ``batch_size`` is its own.
        use_sambaloader, json_counters, set_output_grads: Accepted; inputs come from memory.
        min_duration: Keep on measuring for at least so many seconds.

    Returns:
        Throughput in samples per second, and the average latency of a run in seconds.

    Raises:
        SambaError: If nothing is loaded, or the model or the inputs do not fit it.
    """
    counts = {"n_iterations": n_iterations, "batch_size": batch_size}
    for what, flag in (("inference", inference), ("run_graph_only", run_graph_only)):
        flag_of(flag or False, f"measure_performance({what})")
    loaded = _ready("measure_performance", model, min_duration, counts, json, compiled_stats_json)
    batch_size = _traced_batch(inputs, batch_size, "measure_performance")
    graph = loaded.program.graphs[0]
    types = ["FWD"] if inference else []
    fetch = () if run_graph_only else tuple(output.name for output in graph.outputs)
    say("initial run starts.")
    replicas = loaded.replicas
    parallel = replicas.keywords(data_parallel, reduce_on_rdu)
    session.run(inputs, fetch, section_types=types, **parallel)
    session.synchronize()
    say("initial run completes.")
    feed = None if run_graph_only else inputs
    done = 0
    start = time.perf_counter()
    while True:
        for _ in counted("measure_performance: iterations", n_iterations):
            session.run(feed, fetch, section_types=types, **parallel)
        session.synchronize()
        done += n_iterations
        total = time.perf_counter() - start
        enough = total >= min_duration
        if replicas.decide(enough) if data_parallel else enough:
            break
    throughput = done * batch_size / total
    latency = total / done
    what = "graph_only" if run_graph_only else "e2e"
    say(
        f"{what}_throughput: {throughput} samples/s, measured over {done} iterations. "
        f"Average latency: {latency} s."
    )
    say(f"{what}_latency: {total} s")
    report = {
        "throughput_samples_per_s": throughput,
        "average_latency_s": latency,
        "total_s": total,
        "iterations": done,
        "batch_size": batch_size,
        "run_graph_only": run_graph_only,
        "inference": inference,
    }
    if json:
        _write(json, report)
    if compiled_stats_json:
        _write(compiled_stats_json, {**report, **_stats()})
    return throughput, latency


def measure_sections(
    model: torch.nn.Module,
    inputs: Any,
    num_sections: int | None = None,
    n_iterations: int = 100,
    batch_size: int = 1,
    data_parallel: bool = False,
    reduce_on_rdu: bool = False,
    json: str | None = None,
    min_duration: float = 0.0,
    compiled_stats_json: str | None = None,
) -> tuple[SectionTime, ...]:
    """Time every section by itself and print a table with one row each.

    Sections run in the order of the schedule, each as an executable of its own, and
    are waited for one by one: their sum exceeds a full run, which is one executable. A time is
    that of the executable and its start; with replicas, that of a whole call.

    Args:
        model: The traced model, or one like it.
        inputs: Inputs to transfer once before.
        num_sections: Time only the first so many sections of the schedule.
        n_iterations: Passes over the schedule, at least 1.
        batch_size: Samples in one pass; where the inputs have another batch, theirs counts.
        data_parallel, reduce_on_rdu: Accepted.
        json: Path of a report to write.
        min_duration: Keep on measuring for at least so many seconds.
        compiled_stats_json: Path of an object with that report (``sections``), the memory of each
            plan (``memory``) and the session's metrics (``metrics``).

    Returns:
        One row per section, in the order of the schedule.

    Raises:
        SambaError: If nothing is loaded, or the model or the inputs do not fit it.
    """
    counts = {
        "n_iterations": n_iterations,
        "num_sections": num_sections,
        "batch_size": batch_size,
    }
    loaded = _ready("measure_sections", model, min_duration, counts, json, compiled_stats_json)
    batch_size = _traced_batch(inputs, batch_size, "measure_sections")
    program, replicas = loaded.program, loaded.replicas
    calls = program.schedules[0].calls[:num_sections]
    parallel = replicas.keywords(data_parallel, reduce_on_rdu)
    session.run(inputs, (), section_ids=[calls[0].section], **parallel)
    times: dict[int, list[float]] = {call.section: [] for call in calls}
    with hearing(muted=True):  # of gradients that no update uses: nothing is trained
        for _ in range(2):  # the first pass compiles, the second warms up
            for call in calls:
                session.run(None, (), section_ids=[call.section], **parallel)
    session.synchronize()
    with _clocked() as clock:
        start = time.perf_counter()
        while True:
            for _ in counted("measure_sections: passes over the schedule", n_iterations):
                for call in calls:
                    session.run(None, (), section_ids=[call.section], **parallel)
                    times[call.section].append(clock.take())
            enough = time.perf_counter() - start >= min_duration
            if replicas.decide(enough) if data_parallel else enough:
                break
    medians = {s: statistics.median(t) for s, t in times.items()}
    total = sum(medians.values())
    owned = owners(program)
    rows = tuple(
        SectionTime(
            section_id=s,
            name=program.sections[s].name,
            type=section_types(program.sections[s]),
            calls=len(t),
            min_ms=min(t) * 1e3,
            median_ms=medians[s] * 1e3,
            max_ms=max(t) * 1e3,
            share=medians[s] / total,
            modules=modules_of(program, program.sections[s], owned),
            operations=operations_of(program, program.sections[s]),
            samples_ms=tuple(seconds * 1e3 for seconds in t),
        )
        for s, t in times.items()
    )
    say_text(_LEGEND)
    say_text(format_sections(rows))
    say(f"sum of medians: {total * 1e3:.3f} ms, {batch_size / total:.3f} samples/s")
    report = [_as_json(row) for row in rows]
    if json:
        _write(json, report)
    if compiled_stats_json:
        _write(compiled_stats_json, {"sections": report, **_stats()})
    return rows


@contextmanager
def _clocked() -> Generator[SectionClock, None, None]:
    """Runs go section by section inside, each waited for and clocked."""
    clock = SectionClock(PROFILER.timeline)
    PROFILER.put_on(clock)
    try:
        with hearing(muted=True):  # as above
            yield clock
    finally:
        PROFILER.put_on(clock.beside)


def _write(path: str, report: Any) -> None:
    write_atomically(path, [(json_text(report, indent=2) + "\n").encode()])


def _stats() -> dict[str, Any]:
    """What the session knows of what it has compiled and run."""
    return {"memory": session.memory().as_dict(), "metrics": session.metrics().as_dict()}


def _as_json(row: SectionTime) -> dict[str, Any]:
    return {**asdict(row), "operations": dict(row.operations)}


def _ready(
    function: str,
    model: Any,
    min_duration: Any,
    counts: Mapping[str, int | None],
    *reports: str | None,
) -> Loaded:
    """Check all arguments before time is spent on measuring; return what is loaded."""
    note_measured()
    if not 0 <= as_number(min_duration) < float("inf"):
        raise ArgumentError(
            where="min_duration",
            found=described(min_duration),
            wanted="a number of seconds, 0 or more",
        )
    for what, value in counts.items():
        if value is not None:
            whole_of(value, f"{function}({what})", 1, "a whole number, 1 or more")
    for path in reports:
        file = Path(path_of(path, f"{function}(json)")).absolute() if path else None
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise ArgumentError(
                where=f"{function}(json={path!r})",
                found="a folder" if file.is_dir() else f"no folder {file.parent}",
                wanted="a file in a folder that exists",
            )
    loaded = session.need_loaded(f"utils.{function}()")
    if isinstance(model, torch.nn.Module):  # an ONNX model has no tensors to tell it by
        loaded.model_tensors(model, f"utils.{function}()")
    return loaded


def _traced_batch(inputs: Any, batch_size: int, function: str) -> int:
    """Samples in a run: those of the inputs, where they agree and the caller says otherwise."""
    tensors = [t for _, t in leaves("", inputs) if isinstance(t, torch.Tensor) and t.dim()]
    marked = [t for t in tensors if getattr(t, "batch_dim", None) is not None]
    sizes = {t.shape[getattr(t, "batch_dim", None) or 0] for t in marked or tensors}
    if len(sizes) != 1 or batch_size in sizes:
        return batch_size
    (traced,) = sizes
    say(f"{function}: the inputs are batches of {traced}; batch_size={batch_size} is ignored.")
    return traced


_WORK = ("modules", "operations")
_MODULES = 100
"""Characters for the modules of a section."""
_LEGEND = """\
calls: how often the section was timed; ms: wall time of a call that is waited for
share: of the sum of all medians; a full run is one executable and takes less than that sum
modules: a[0-3].b is b of a[0] to a[3]; operations: linear:2 are two"""
"""What the columns of :func:`format_sections` mean."""


def format_sections(rows: Sequence[SectionTime]) -> str:
    """Lay out section times as a table.

    Args:
        rows: The rows.

    Returns:
        Text without a final newline.
    """
    head = ("id", "type", "name", "calls", "min ms", "median ms", "max ms", "share", *_WORK)
    root = root_of(module for r in rows for module in r.modules)
    cells = [
        (
            str(r.section_id),
            r.type,
            r.name,
            str(r.calls),
            f"{r.min_ms:.3f}",
            f"{r.median_ms:.3f}",
            f"{r.max_ms:.3f}",
            f"{100 * r.share:.1f} %",
            short_paths(r.modules, root=root, width=_MODULES),
            operations_text(r.operations),
        )
        for r in rows
    ]
    return table(head, cells, width=sys.maxsize, right=(0, 3, 4, 5, 6, 7))
