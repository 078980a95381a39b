"""The page about a PEF: what is on it, and how it looks and behaves in a real browser."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import samba
from bench import nets
from emulator.costs.description import describe
from emulator.costs.machine_file import parsed_machine
from pef_schema import Program, read_info, read_pef, write_pef
from samba.inspection import inspect_command, memory_command
from samba.reporting.page import Times, page, summary
from samba.reporting.plots import memory_plot
from samba.reporting.report_command import BadTimes, run, section_seconds
from samba.support.layout import bytes_text
from tests.samba.exporting.models import MODELS
from tests.samba.inspection.programs import chain, two_graphs
from tests.samba.worlds import MLP

MACHINE = """\
name = "a machine"
bandwidth_gb_s = 20.0
float32_gflops = 300.0
"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    return MODELS["lenet"].compiled(tmp_path_factory.mktemp("pef"), inference=False)


def facts_of(path: str) -> tuple[Program, dict[str, Any]]:
    program = read_pef(path)
    return program, describe(program, read_info(path))


class Reader(HTMLParser):
    """Counts elements, and checks that each one that opens closes in its turn."""

    VOID = frozenset({"meta", "br", "line", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if found.get("href"):
            self.links.append(str(found["href"]))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_everything_is_on_the_page(pef: str) -> None:
    program, facts = facts_of(pef)
    found = Reader(page(program, facts))
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    for section in program.sections:
        assert section.name in found.text
    graph = program.graphs[0]
    assert {f"node-{i}" for i in range(len(graph.nodes))} <= set(found.ids)
    assert {f"section-{i}" for i in range(len(program.sections))} <= set(found.ids)
    modules = {part for node in graph.nodes for part in node.module.split("__")}
    assert all(part in found.text for part in modules)
    (graph_facts,) = facts["graphs"]
    assert bytes_text(graph_facts["memory"]["peak_bytes"]) + "peak of lenet" in found.text
    assert "lenet__fc3__linear__outputs__0 float32[3, 10], linear of fc3 at nets.py:" in found.text
    assert "lenet__{" not in found.text
    for word in ("lr", "momentum", "sgd0", read_info(pef).digest, "losses", "float32"):
        assert word in found.text, word
    lines = {f"{n.source.rpartition(':')[0]}#L{n.source.rpartition(':')[2]}" for n in graph.nodes}
    assert lines <= set(found.links)
    assert found.counts.get("script", 0) == 0


def test_a_machine_and_times_are_on_it(pef: str) -> None:
    program, facts = facts_of(pef)
    machine = parsed_machine(MACHINE, "machine.toml")
    seconds = {s.name: 1e-3 * (i + 1) for i, s in enumerate(program.sections)}
    del seconds[program.sections[-1].name]
    found = page(program, facts, machine=machine, times=Times(source="t.json", seconds=seconds))
    read = Reader(found)
    multiplied = [s for s in facts["sections"] if s["cost"]["product_flops"]]
    assert found.count('class="spot ') == len(multiplied)
    assert "not measured" in read.text and "a machine" in read.text
    total = sum(seconds.values())
    (width,) = re.findall(r'href="#section-1" style="flex-grow:([\d.]+)"', found)
    assert float(width) == pytest.approx(2e-3 / total, abs=1e-6)
    assert f"{2e-3 / total:.1%}" in read.text


def test_a_chart_is_named_for_what_it_shows(pef: str) -> None:
    program, facts = facts_of(pef)
    machine = parsed_machine(MACHINE, "machine.toml")
    times = Times(source="t.json", seconds={s.name: 1e-3 for s in program.sections})
    for more, title in (
        ({}, "Bytes read and written: sections of lenet"),
        ({"machine": machine}, "Least time, estimated: sections of lenet"),
        ({"machine": machine, "times": times}, "Time, measured: sections of lenet"),
    ):
        assert f">{title}</h2>" in page(program, facts, **more)


def test_lines_of_the_users_files_come_first(tmp_path: Path) -> None:
    path = MODELS["lenet"].compiled(tmp_path, inference=False, optim_level="o3")
    program = read_pef(path)
    (graph,) = program.graphs
    hub = "/v/site-packages/hub/net.py"
    nodes = tuple(
        dataclasses.replace(node, source=f"{hub}:{i}" if i < 6 else "mine.py:7")
        for i, node in enumerate(graph.nodes)
    )
    program = dataclasses.replace(program, graphs=(dataclasses.replace(graph, nodes=nodes),))
    found = page(program, describe(program))
    rows = re.findall(r'<div data-h="lines">(.*?)</div>', found)
    assert rows
    for row in rows:
        files = re.findall(r'href="([^"#]+)#', row)
        assert files == sorted(files, key=lambda file: file != "mine.py")
    assert "mine.py" in rows[0] and hub in rows[0]


def test_every_call_is_on_the_axis_of_the_memory(pef: str) -> None:
    _, facts = facts_of(pef)
    (memory,) = (graph["memory"] for graph in facts["graphs"])
    plot = memory_plot(memory)
    assert plot is not None
    assert [mark.section for mark in plot.calls] == [call["section"] for call in memory["calls"]]
    assert len(plot.calls) > 8
    many = {**memory, "calls": memory["calls"] * 20}
    plot = memory_plot(many)
    assert plot is not None and len(plot.calls) == len(many["calls"])
    assert 10 < sum(bool(mark.label) for mark in plot.calls) <= 20
    assert 4 < sum(mark.always for mark in plot.calls) <= 10
    assert all(mark.label for mark in plot.calls if mark.always)


@pytest.mark.parametrize("name", ["lenet", "gpt"])
def test_the_peak_is_that_of_the_memory_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = MODELS[name].compiled(tmp_path, inference=False)
    capsys.readouterr()
    assert memory_command.run([path, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["graphs"]
    assert inspect_command.run([path, "--json"]) == 0
    (inspected,) = json.loads(capsys.readouterr().out)["graphs"]
    assert inspected["memory"]["peak_bytes"] == told["peak_bytes"]
    assert run([path, "-o", str(tmp_path / "page.html")]) == 0
    shown = Reader((tmp_path / "page.html").read_text()).text
    assert f"{bytes_text(told['peak_bytes'])}peak of {name}" in shown
    assert f"The peak is {bytes_text(told['peak_bytes'])}, in call" in shown


def test_what_a_file_says_runs_nothing() -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    program = chain([f"{evil}.relu", "\x1b[2J.tanh"])
    graph = program.graphs[0]
    nodes = tuple(
        dataclasses.replace(node, source=f"javascript:alert({i}):3")
        for i, node in enumerate(graph.nodes)
    )
    program = dataclasses.replace(
        program,
        name=evil,
        graphs=(dataclasses.replace(graph, nodes=nodes),),
        metadata=(("made by", evil),),
    )
    found = page(program, describe(program))
    read = Reader(found)
    assert "script" not in read.counts and "img" not in read.counts
    assert not [link for link in read.links if not link.startswith("#")]
    assert "\x1b" not in found
    assert read.text.count("<script>alert(1)</script>") >= 3


def test_graphs_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "two.pef"
    write_pef(str(path), two_graphs())
    whole, one = tmp_path / "whole.html", tmp_path / "one.html"
    assert run([str(path), "-o", str(whole)]) == 0
    assert run([str(path), "--graph", "second", "-o", str(one)]) == 0
    assert Reader(whole.read_text()).text.count("Graph ") == 2
    assert Reader(one.read_text()).text.count("Graph ") == 1


def test_times_from_files(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"name": "a", "median_ms": 2.0}, {"name": "b", "median_ms": "x"}]))
    known = {"a": ("net", "net__in"), "b": ()}
    assert section_seconds(str(rows), known) == {"a": 2e-3}
    trace = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "sections", "name": "a", "ts": 0, "dur": d} for d in (1000, 3000, 2000)
    ]
    events += [{"ph": "X", "cat": "host", "name": "a", "dur": 9e9}, {"ph": "M"}, 7]
    trace.write_text(json.dumps({"traceEvents": events}))
    assert section_seconds(str(trace), known) == {"a": 2e-3}
    for text, said in (
        ("{", "not JSON"),
        ("{}", "no times"),
        ("[]", "no times"),
        ('[{"name": "z", "median_ms": 1}]', "another program"),
        ('[{"name": "a", "median_ms": -1}]', "no times"),
        ('[{"name": "a", "median_ms": true}]', "no times"),
    ):
        rows.write_text(text)
        with pytest.raises(BadTimes, match=said):
            section_seconds(str(rows), known)
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadTimes, match="cannot be read"):
            section_seconds(str(path), known)


def test_times_of_a_section_with_other_modules_are_refused(tmp_path: Path) -> None:
    """Sections of any program are called fwd_0: another PEF's times would stand on the page."""
    path, known = tmp_path / "times.json", {"a": ("net", "net__in")}
    for modules, same in ((["net__in", "net"], True), (["net"], False), (["net", "other"], False)):
        row = {"name": "a", "median_ms": 2.0, "modules": modules}
        event = {"ph": "X", "cat": "sections", "name": "a", "dur": 2000, "args": row}
        for found in ([row], {"traceEvents": [event]}):
            path.write_text(json.dumps(found))
            if same:
                assert section_seconds(str(path), known) == {"a": 2e-3}
            else:
                with pytest.raises(BadTimes, match="section a has other modules than"):
                    section_seconds(str(path), known)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--graph=none"], 2, "it has no graph"),
        (["--machine=none.toml"], 3, "none.toml"),
        (["--times=none.json"], 3, "none.json"),
    ],
)
def test_wrong_usage_is_one_error(
    pef: str,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    out = tmp_path / "page.html"
    assert run([pef, "-o", str(out), *arguments]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and said in captured.err.splitlines()[0]
    assert captured.out == "" and captured.err.count("error: ") == 1
    assert not out.exists()


def test_the_pef_is_not_written_over_and_folders_are_no_files(
    pef: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.pef"
    own.write_bytes(Path(pef).read_bytes())
    assert run([str(own), "-o", str(own)]) == 2
    assert run([str(own), "-o", str(tmp_path)]) == 1
    assert run([str(tmp_path), "-o", str(tmp_path / "x.html")]) == 3
    assert own.read_bytes() == Path(pef).read_bytes()
    assert len(capsys.readouterr().err.splitlines()) == 3


# -- in a browser ------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a GPT of more than 1,000 nodes, with times and a machine."""
    folder = tmp_path_factory.mktemp("gpt")
    model = MODELS["gpt"]
    deep = dataclasses.replace(model, make=lambda: nets.GPT(64, 16, 56, 2, 32, tied=False))
    path = deep.compiled(folder, inference=False, optim_level="o1")
    program = read_pef(path)
    assert len(program.graphs[0].nodes) > 1000
    (folder / "machine.toml").write_text(MACHINE)
    rows = [{"name": s.name, "median_ms": 0.1 + i % 7} for i, s in enumerate(program.sections)]
    (folder / "times.json").write_text(json.dumps(rows))
    out = folder / "report.html"
    more = [f"--machine={folder / 'machine.toml'}", f"--times={folder / 'times.json'}"]
    assert run([path, "-o", str(out), *more]) == 0
    samba.session.reset()
    assert out.stat().st_size < 5e6
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium from the system."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # a browser's own process

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


_CUT = """() => { const right = e => e.getBoundingClientRect().right; return [
    ...document.querySelectorAll("main *")].filter(e =>
    ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowY)
        && e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).position != "absolute"
    || getComputedStyle(e).contentVisibility == "auto"
    || e.matches("table") && right(e) > right(e.parentElement) + 1
).map(e => e.outerHTML.slice(0, 80)) }"""
"""Elements whose content is cut, scrolls by itself or is left out until somebody looks."""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_in_chromium(browser: Any, large: Path, width: int, scheme: str, tmp_path: Path) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab = context.new_page()
    problems: list[str] = []
    tab.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda e: problems.append(str(e)))
    tab.on("request", lambda r: problems.append(r.url) if not r.url.startswith("file:") else None)
    took = []
    for _ in range(3):  # other tests run beside it: the shortest is the page's own
        start = time.monotonic()
        tab.goto(large.as_uri())
        tab.wait_for_load_state("load")
        took.append(time.monotonic() - start)
    assert problems == []
    assert min(took) < 2.0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128
    assert light == (scheme == "light")
    # No table scrolls within the page or is cut, and each row is there to be printed.
    assert tab.evaluate(_CUT) == []
    # By keyboard alone: a closed box opens, and closes again.
    closed = tab.locator("details:not([open]) > summary").first
    closed.evaluate("e => e.closest('details').setAttribute('data-tried', '')")
    tried = tab.locator("details[data-tried]")
    tried.locator("> summary").focus()
    tab.keyboard.press("Enter")
    assert tried.evaluate("e => e.open")
    tab.keyboard.press("Enter")
    assert not tried.evaluate("e => e.open")
    context.close()


# -- what a notebook shows --------------------------------------------------------------


def test_a_program_draws_itself(pef: str) -> None:
    program = read_pef(pef)
    drawn = program._repr_html_()
    assert drawn is not None and drawn == summary(program)
    shown = Reader(drawn)
    facts = describe(program)
    for what in (program.name, "training", *facts["graphs"][0]["losses"]):
        assert what in shown.text
    # The notebook has a style, and may be shown where scripts run.
    assert not {"script", "style", "link", "html", "body"} & shown.counts.keys()
    first = facts["sections"][0]
    assert first["name"] in shown.text and bytes_text(first["bytes"]) in shown.text
    assert len(drawn) < 20_000


def test_of_many_sections_the_first_are_drawn() -> None:
    program = chain([f"part{i}.relu" for i in range(12)])
    shown = Reader(summary(program))
    rows = [section.name for section in program.sections if section.name in shown.text]
    more = len(program.sections) - len(rows)
    assert len(rows) == 8 and f"{more} more sections" in shown.text


def test_graphs_are_named_where_there_are_several() -> None:
    program = two_graphs()
    shown = Reader(summary(program)).words
    assert all(graph.name in shown for graph in program.graphs)


def test_what_a_program_says_runs_nothing_in_a_notebook() -> None:
    hostile = "<script>alert(1)</script>&\x1b[31m"
    program = dataclasses.replace(chain(["relu", "tanh"]), name=hostile, mapping=hostile)
    drawn = summary(program, [(hostile, hostile)])
    assert "<script" not in drawn and "\x1b" not in drawn
    assert Reader(drawn).text.count("<script>alert(1)</script>&\\x1b[31m") == 4


def test_a_session_draws_what_is_loaded(pefs) -> None:
    assert samba.session._repr_html_() is None  # the text says it
    scene = pefs.loaded(MLP)
    scene.run()
    shown = Reader(samba.session._repr_html_() or "").text
    for what in (samba.session.program.name, samba.session.pef_path, "runs1"):
        assert what in shown
