"""Results: kept, compared, exported, drawn, and held against the goals."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest

from bench import report, targets
from bench.__main__ import main
from bench.commands import SUITES
from bench.errors import BadResults
from bench.measurement import FULL, OURS, Results, Spread, environment, load
from bench.models import TIMED, suite_of
from bench.page import page
from bench.peers import CONTENDERS, DDP, REPLICA
from bench.suites import ddp
from bench.suites.host import HOST_TIME
from bench.suites.limit import LIMIT
from bench.suites.memory import LATER_PLANS
from bench.suites.sections import SUM, WHOLE
from bench.suites.start import COMPILE, EXPORT, FIRST, SECOND, WARM
from bench.suites.thunks import KIND
from emulator.processor import processor


def sample() -> Results:
    found = Results(environment=environment(2), settings={"rounds": 3})
    found.add("steps", "gpt", "ours", "step", "s", [0.10, 0.40, 0.20])
    found.add("steps", "gpt", "eager", "step", "s", [0.40, 0.40, 0.40])
    found.add("steps", "gpt", "eager+alloc", "step", "s", [0.20, 0.20, 0.20])
    found.add("steps", "gpt", "compile", "step", "s", [0.25, 0.25, 0.25])
    found.add("unseen", "moe", "ours", "step", "s", [0.1, 0.1, 0.1])
    found.add("unseen", "moe", "eager", "step", "s", [0.4, 0.4, 0.4])
    found.add("unseen", "moe", "compile+alloc", "step", "s", [0.2, 0.2, 0.2])
    found.add("thunks", "gpt", "ours", KIND + "dot", "s", [0.1], note="50.0%, 3 x")
    found.add("limit", "gpt", LIMIT, "step", "s", [0.16])
    found.add("sections", "gpt", "ours", "fwd_<0>", "s", [0.1])
    found.add("sections", "gpt", "ours", SUM, "s", [0.3])
    found.add("sections", "gpt", "ours", FULL, "s", [0.2])
    found.add("sections", "layers-48", "ours", FULL, "s", [0.102])
    found.add("sections", "layers-48", "ours", WHOLE, "s", [0.1])
    for n in (10, 20, 40):
        found.add("host", str(n), "ours", HOST_TIME, "s", [50e-6 + 3e-6 * (n - 10)])
    found.add("start", "gpt", "ours", COMPILE, "s", [7.0])
    found.add("start", "gpt", "eager", EXPORT, "s", [5.0])
    found.add("start", "gpt", "ours", FIRST, "s", [4.0])
    found.add("start", "gpt", "compile", FIRST, "s", [40.0])
    found.add("start", "gpt", "ours", SECOND, "s", [9.0, 7.0, 8.0])
    found.add("start", "gpt", "eager", FIRST, "s", [5.0, 5.5, 6.0])
    found.add("start", "gpt2", "ours", WARM, "s", [3.9])
    found.add("memory", "gpt", "ours", "peak", "B", [127 << 20])
    found.add("memory", "gpt", "eager", "peak", "B", [100 << 20])
    found.add("memory", "gpt", "ours", LATER_PLANS, "plans", [0])
    found.add("memory", "logreg-1", "ours", "peak", "B", [-(1 << 19)])
    found.add("memory", "logreg-1", "eager", "peak", "B", [1 << 20])
    found.fail("steps", "gpt", "jax", "no C++ compiler")
    return found


def test_spread():
    assert Spread.of([4.0]) == Spread(median=4.0, low=4.0, high=4.0, least=4.0, most=4.0)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 9.0]) == Spread(
        median=3.0, low=2.0, high=4.0, least=1.0, most=9.0
    )


def test_ratios_are_taken_round_by_round_against_the_better_peer():
    found = sample()
    assert found.best("steps", "gpt", "step", "eager") == "eager+alloc"
    ratio = found.ratio("steps", "gpt", "step", "eager+alloc")
    assert ratio == Spread(median=1.0, low=0.75, high=1.5, least=0.5, most=2.0)
    assert found.ratio("steps", "gpt", "step", "jax") is None
    assert found.best("steps", "gpt", "step", "jax") is None
    assert found.ratio("start", "gpt", FIRST, "compile") == Spread.of([0.1])


def test_goals():
    rows = {row.what: row for row in targets.rows(sample())}
    met = {what: row.met for what, row in rows.items() if row.met is not None}
    assert met == {
        "step time / better of eager and compile: gpt": False,
        "step time / better of eager and compile: moe": True,
        "step time / machine limit: gpt": True,
        "host time of session.run, 10 regions": False,
        "host time of each further region": False,
        "sum of sections / full schedule: gpt": True,
        "step in parts / as one executable: layers-48": True,
        "second run to its first loss / torch eager: gpt": True,
        "first run to its first loss / torch.compile's: gpt": True,
        "compile / torch.export: gpt": False,
        "second run: wall: gpt2": True,
        "peak memory of a step / torch eager: gpt": False,
        "peak memory of a step / torch eager: logreg-1": True,
        LATER_PLANS: True,
    }
    better = rows["step time / better of eager and compile: gpt"]
    assert better.measured == "1.000 (0.750 - 1.500; eager+alloc)"
    better = rows["step time / better of eager and compile: moe"]
    assert better.measured == "0.500 (0.500 - 0.500; compile+alloc)"
    assert rows["step time / machine limit: gpt"].measured == "1.250 (bound 160.000 ms)"
    small = rows["peak memory of a step / torch eager: logreg-1"]
    assert small.measured == "-0.5 MiB / 1.0 MiB"
    text = report.goals(list(rows.values()))
    assert "not measured" in text and f"9 of {len(rows)} rows met" in text


@pytest.mark.parametrize(("factor", "met"), [(0.69, True), (0.71, False)])
def test_the_mean_is_of_all_models(factor, met):
    found = Results(environment=environment(2))
    for case in TIMED:
        suite = suite_of(case)
        found.add(suite, case, "ours", "step", "s", [factor])
        found.add(suite, case, "compile", "step", "s", [1.0])
    rows = {row.what: row for row in targets.rows(found)}
    mean = rows["the same, geometric mean"]
    assert (mean.reach, mean.met) == ("≤ 0.70", met)
    assert mean.measured == f"{factor:.3f} (22 of 22 models)"
    assert rows["the same, geometric mean of ordinary models"].met
    # A mean of some models alone says nothing of all.
    del found.measurements[0]
    assert {row.what: row for row in targets.rows(found)}["the same, geometric mean"].met is None


def test_peers_and_the_better_one_by_model():
    text = report.models(sample())
    assert re.search(r"model +step +/ eager +/ compile +/ better +/ jax +/ limit", text)
    assert re.search(r"gpt +200.000 ms +1.000 +0.800 +1.000 +- +1.25", text)
    assert re.search(r"moe +100.000 ms +0.250 +0.500 +0.500 +- +-", text)
    assert re.search(r"geometric mean +0.707", text)
    assert report.models(Results()) == ""


@pytest.mark.parametrize("part", ["suites", "cases", "contenders"])
def test_a_part_of_the_bench_shows_its_own_rows(part, tmp_path, capsys):
    found = sample()
    path = tmp_path / "part.json"
    everything = {"suites": [*SUITES], "cases": [*TIMED], "contenders": [*CONTENDERS]}
    for settings, whole in (({}, True), (everything, True), (everything | {part: []}, False)):
        found.settings = settings
        found.save(path)
        assert main(["table", str(path)]) == 0
        text = capsys.readouterr().out
        assert ("not measured" in text) == whole
        assert "better of eager and compile: moe" in text
        assert "steps  gpt  jax  failed: no C++ compiler" in text


def test_of_two_parts_the_rows_of_either_are_shown():
    steps, memory = Results(settings={"suites": ["steps"]}), Results(settings={"suites": []})
    for contender, seconds in (("ours", 0.1), ("eager", 0.2)):
        steps.add("steps", "gpt", contender, "step", "s", [seconds])
    memory.add("start", "gpt2", "ours", WARM, "s", [3.9])
    text = report.goal_table({"a": steps, "b": memory})
    lines = [line for line in text.splitlines() if "not measured" in line]
    assert len(lines) == 3 and all("0.500" in line or "3.90 s" in line for line in lines)
    assert "a: 1 of 2 rows met, 1 without an answer" in text
    assert "b: 1 of 1 rows met, 0 without an answer" in text


def test_results_come_back_from_their_file(tmp_path):
    path = tmp_path / "found.json"
    found = sample()
    found.save(path)
    again = load(path)
    assert again == found
    assert set(again.environment["versions"]) == {"python", "torch", "jax", "jaxlib", "numpy"}


EMPTY = {"format": 3, "measurements": [], "failures": [], "environment": {}, "settings": {}}


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"format": 2}', '{"format": 3}'),
        json.dumps(EMPTY | {"settings": {"suites": 3}}),
        json.dumps(EMPTY | {"settings": {"cases": [["gpt"]]}}),
    ],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadResults, match=r"x\.json"):
        load(path)


def test_table_names_failures():
    text = report.table(sample())
    assert "jax  failed: no C++ compiler" in text
    assert text.startswith("processor: ") and str(processor()) in text.splitlines()[0]
    assert re.search(r"steps +gpt +ours +step +200.000 ms +150.000 ms - 300.000 ms", text)


def test_export_is_what_charts_take():
    entries = report.smaller_is_better(sample())
    assert entries[0] == {
        "name": "steps / gpt / ours / step",
        "unit": "ms",
        "value": 200.0,
        "range": "± 75",
        "extra": entries[0]["extra"],
    }
    assert {e["unit"] for e in entries} == {"ms", "MiB"}
    assert len({e["name"] for e in entries}) == len(entries)


def files(tmp_path, factor: float):
    base, head = sample(), Results(environment=environment(2) | {"threads": 4})
    many = [0.1 + 0.001 * i for i in range(12)]
    base.add("steps", "lenet-1", "ours", "step", "s", many)
    head.add("steps", "lenet-1", "ours", "step", "s", [factor * t for t in many])
    paths = tmp_path / "base.json", tmp_path / "head.json"
    base.save(paths[0])
    head.save(paths[1])
    return [str(path) for path in paths]


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.3, 1), (0.7, 0)])
def test_compare(tmp_path, capsys, factor, status):
    assert main(["compare", *files(tmp_path, factor)]) == status
    text = capsys.readouterr().out
    assert "note: threads differs" in text and text.count(str(processor())) == 2
    assert f"{factor:.3f}" in text and "only in base" in text


class Tags(HTMLParser):
    """Checks that every element is closed in order; notes addresses and classes."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_stands_by_itself():
    text = page(sample())
    tags = Tags()
    # The parser knows SVG's self-closing tags as such.
    tags.handle_startendtag = lambda tag, attrs: tags.seen.append(tag)
    tags.feed(text)
    assert tags.open == [] and "script" not in tags.seen
    assert "http" not in text and "@import" not in text and "prefers-color-scheme: dark" in text
    assert "fwd_&lt;0&gt;" in text and "fwd_<0>" not in text
    assert html.escape(str(processor())) in text and "Thunks of gpt by kind" in text
    assert "1.00 of eager+alloc" in text and "80 % of the machine" in text
    assert "<svg" not in page(Results())
    assert text.rindex("<svg") < text.index("<table"), "plots come first"
    part = sample()
    part.settings["suites"] = ["steps"]
    assert "not measured" in text and "not measured" not in page(part)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["run", "--rounds=0"], "--rounds: found 0, expected 1 or more"),
        (["run", "--rounds=x"], "--rounds: invalid int value: 'x'"),
        (["run", "--model=x"], "error"),
        ([], "error"),
    ],
)
def test_wrong_arguments(argv, text, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_errors_are_told(tmp_path, capsys):
    assert main(["table", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
    assert main(["kernels", "--only", "zzz"]) == 2
    assert "no problem has a name that contains 'zzz'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    names = {kind: tmp_path / kind for kind in ("json", "html", "smaller-is-better")}
    what = ("--model", "logreg-1", "--suite", "steps", "--contender", "eager", "eager+alloc")
    assert main(["run", "--quick", *what, *(f"--{k}={path}" for k, path in names.items())]) == 0
    text = capsys.readouterr().out
    assert re.search(r"(?m)^steps +logreg-1 +eager\+alloc +step +\d", text)
    assert "\n0 of 0 rows met, 0 without an answer\n" in text  # no goal is of torch alone
    assert "seconds by suite: {'steps': " in text and str(processor()) in text
    found = load(names["json"])
    assert [m.contender for m in found.measurements] == ["eager", "eager+alloc"]
    assert all(len(m.values) == 2 and min(m.values) > 0 for m in found.measurements)
    assert len(json.loads(names["smaller-is-better"].read_text())) == 2
    assert names["html"].read_text().startswith("<!doctype html>")


TOGETHER = (
    ("start", "steps"),
    ("unseen", "ordinary"),
    ("limit", "sections", "thunks", "host", "memory"),
    ("overlap", "alone", "ddp"),
)
"""Suites that run as one command, and find in the caches what those before them compiled."""
OF_SUITES = {
    "start": ["logreg-1", "lenet-32"],
    "steps": ["logreg-1", "lenet-32"],
    "unseen": ["moe"],
    "ordinary": ["steps-50"],
}
"""What a suite measures of the models that are asked for: its own."""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("suites", TOGETHER, ids="-".join)
def test_every_suite_and_contender(suites, tmp_path, monkeypatch):
    monkeypatch.setattr(ddp, "PROCESSES", 1)
    path = tmp_path / "bench.json"
    of_their_own = ["moe", "steps-50"] if set(suites) <= set(OF_SUITES) else []
    cases = ["logreg-1", "lenet-32", *of_their_own]
    options = ["--suite", *suites, "--model", *cases, f"--json={path}"]
    assert main(["run", "--quick", *options]) == 0
    found = load(path)
    assert found.failures == []
    assert {m.suite for m in found.measurements} == {*suites} == {*found.settings["suite_seconds"]}
    for suite in suites:
        if suite in OF_SUITES:
            assert [c for c in found.cases(suite) if c in TIMED] == OF_SUITES[suite]

    def contenders(suite: str, case: str) -> list[str]:
        timed = list(found.select(suite, case, "step"))
        assert all(len(m.values) == 2 and min(m.values) > 0 for m in timed)
        return [m.contender for m in timed]

    peers = ["eager", "compile", "jax"]
    everyone = ["ours", *peers, *(f"{p}+alloc" for p in peers)]
    if "steps" in suites:
        assert contenders("steps", "lenet-32") == everyone
    if "unseen" in suites:  # nobody wrote these models by hand
        others = [name for name in everyone if not name.startswith("jax")]
        assert contenders("unseen", "moe") == contenders("ordinary", "steps-50") == others
    if "ddp" in suites:
        assert contenders("alone", "lenet-32") == [OURS, REPLICA]
        assert contenders("ddp", "deep_mlp") == [REPLICA, DDP]


def test_no_suite_is_left_out():
    assert sorted(suite for suites in TOGETHER for suite in suites) == sorted(SUITES)
