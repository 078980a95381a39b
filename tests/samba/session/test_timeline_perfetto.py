"""A timeline in Perfetto's own trace processor: every span is on its track, with its time."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

import samba
from tests.processes import finished
from tests.samba.worlds import World

PROCESSOR = shutil.which(os.environ.get("TRACE_PROCESSOR", "trace_processor_shell"))

_QUERY = """\
select thread.name as track, slice.name as name, count(*) as number, sum(slice.dur) as nanoseconds
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
group by 1, 2 order by 1, 2;
"""
_LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0;"


def asked(query: str, trace: Path, folder: Path) -> list[dict[str, str]]:
    """What the trace processor answers."""
    file = folder / "query.sql"
    file.write_text(query)
    done = finished([str(PROCESSOR), "-q", str(file), str(trace)], cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.mark.slow
@pytest.mark.skipif(PROCESSOR is None, reason="there is no trace_processor_shell on this machine")
def test_all_of_a_hundred_steps(tmp_path: Path) -> None:
    scene = World(name="timed", config={"optim_level": "o0"}).build()
    scene.compile(tmp_path)
    scene.trace()
    trace = tmp_path / "t.json"
    samba.session.start_timeline(trace, kernels=True)
    for _ in range(100):
        scene.run()
    samba.session.stop_timeline()
    assert asked(_LOST, trace, tmp_path) == []
    wanted: dict[tuple[str, str], list[float]] = {}
    found = json.loads(trace.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    for event in found:
        if event["ph"] == "X":
            wanted.setdefault((names[event["tid"]], event["name"]), []).append(event["dur"])
    read = asked(_QUERY, trace, tmp_path)
    assert {(row["track"], row["name"]) for row in read} == set(wanted)
    for row in read:
        times = wanted[row["track"], row["name"]]
        assert int(row["number"]) == len(times)
        # The file has thousandths of a microsecond, the trace processor whole nanoseconds.
        assert int(row["nanoseconds"]) == pytest.approx(1e3 * sum(times), abs=1.0 * len(times))
    assert sum(1 for row in read if row["track"] == "sections") > 3
