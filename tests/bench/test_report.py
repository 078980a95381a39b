"""Results: kept, compared, exported, drawn, and held against the goals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from bench import history, report, targets
from bench.__main__ import main
from bench.errors import BadResults
from bench.measurement import FULL, Results, Spread, environment, load
from bench.page import page
from bench.run import SUITES
from bench.suites.compile import COLD, WARM
from bench.suites.host import HOST_TIME
from bench.suites.limit import LIMIT
from bench.suites.sections import SUM
from bench.tree import ROOT


def sample() -> Results:
    found = Results(environment=environment(2), settings={"rounds": 3})
    found.add("steps", "gpt", "ours", "step", "s", [0.10, 0.40, 0.20])
    found.add("steps", "gpt", "eager", "step", "s", [0.40, 0.40, 0.40])
    found.add("steps", "gpt", "eager+alloc", "step", "s", [0.20, 0.20, 0.20])
    found.add("limit", "gpt", LIMIT, "step", "s", [0.16])
    found.add("sections", "gpt", "ours", "fwd_<0>", "s", [0.1])
    found.add("sections", "gpt", "ours", SUM, "s", [0.3])
    found.add("sections", "gpt", "ours", FULL, "s", [0.2])
    for n in (10, 20, 40):
        found.add("host", str(n), "ours", HOST_TIME, "s", [50e-6 + 3e-6 * (n - 10)])
    found.add("compile", "gpt", "ours", COLD, "s", [4.0])
    found.add("compile", "gpt", "ours", WARM, "s", [3.0])
    found.add("compile", "gpt", "compile", COLD, "s", [10.0])
    found.add("memory", "gpt", "ours", "peak", "B", [3 << 20])
    found.add("memory", "gpt", "eager", "peak", "B", [2 << 20])
    found.add("memory", "logreg-1", "ours", "peak", "B", [-(1 << 19)])
    found.add("memory", "logreg-1", "eager", "peak", "B", [1 << 20])
    found.fail("steps", "gpt", "compile", "no C++ compiler")
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
    assert found.ratio("compile", "gpt", COLD, "compile") == Spread.of([0.4])


def test_goals():
    rows = {row.what: row for row in targets.rows(sample())}
    met = {what: row.met for what, row in rows.items() if row.met is not None}
    assert met == {
        "step time / torch eager: gpt": False,
        "step time / machine limit: gpt": True,
        "host time of session.run, 10 regions": True,
        "host time of each further region": False,
        "sum of sections / full schedule: gpt": True,
        "first loss cold / torch.compile's cold: gpt": True,
        "first loss warm cache / torch.compile's cold: gpt": False,
        "peak memory of a step / torch eager: gpt": False,
    }
    assert rows["step time / machine limit: gpt"].measured == "1.250 (bound 160.000 ms)"
    small = rows["peak memory of a step / torch eager: logreg-1"]
    assert small.measured == "too little to tell (-0.5 MiB / 1.0 MiB)"
    text = targets.table(list(rows.values()))
    assert "not measured" in text and f"4 of {len(rows)} rows met" in text


def test_results_come_back_from_their_file(tmp_path):
    path = tmp_path / "found.json"
    found = sample()
    found.save(path)
    again = load(path)
    assert again == found
    assert set(again.environment["versions"]) == {"python", "torch", "jax", "jaxlib", "numpy"}


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadResults, match=r"x\.json"):
        load(path)


def test_table_names_failures():
    text = report.table(sample())
    assert "compile  failed: no C++ compiler" in text
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
    base, head = sample(), Results(environment=environment(2) | {"processor": "another"})
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
    assert "note: processor differs" in text
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


def test_page_stands_by_itself(tmp_path):
    path = tmp_path / "history.jsonl"
    for _ in range(2):
        history.add(path, sample())
    past = history.load(path)
    text = page(sample(), past)
    tags = Tags()
    # The parser knows SVG's self-closing tags as such.
    tags.handle_startendtag = lambda tag, attrs: tags.seen.append(tag)
    tags.feed(text)
    assert tags.open == [] and "script" not in tags.seen
    assert "http" not in text and "@import" not in text and "prefers-color-scheme: dark" in text
    assert "fwd_&lt;0&gt;" in text and "fwd_<0>" not in text
    assert tags.seen.count("polyline") == 1 and tags.seen.count("circle") == 2
    assert "1.00 of eager+alloc" in text and "80 % of the machine" in text
    assert "<svg" not in page(Results())


def test_a_bad_history_is_named(tmp_path):
    path = tmp_path / "history.jsonl"
    history.add(path, sample())
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(BadResults, match=r"history\.jsonl:2"):
        history.load(path)


@pytest.mark.parametrize("argv", [["run", "--rounds=0"], ["run", "--model=x"], [], ["gate"]])
def test_wrong_arguments(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def test_errors_are_told(tmp_path, capsys):
    assert main(["table", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    names = {kind: tmp_path / kind for kind in ("json", "html", "history", "smaller-is-better")}
    what = ("--model", "logreg-1", "--suite", "steps", "--contender", "eager", "eager+alloc")
    assert main(["run", "--quick", *what, *(f"--{k}={path}" for k, path in names.items())]) == 0
    assert "step time / torch eager: logreg-1" in capsys.readouterr().out
    found = load(names["json"])
    assert [m.contender for m in found.measurements] == ["eager", "eager+alloc"]
    assert all(len(m.values) == 2 and min(m.values) > 0 for m in found.measurements)
    assert len(json.loads(names["smaller-is-better"].read_text())) == 2
    assert names["html"].read_text().startswith("<!doctype html>")
    assert len(history.load(names["history"])) == 1


@pytest.mark.slow
def test_every_suite_and_contender(tmp_path):
    path = tmp_path / "bench.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench", "run", "--quick"),
            *("--model", "logreg-1", "lenet-32", f"--json={path}"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    found = load(path)
    assert found.failures == []
    suites = {m.suite for m in found.measurements}
    assert suites == set(SUITES)
    steps = [m.contender for m in found.select("steps", "lenet-32")]
    assert steps == ["ours", "eager", "compile", "jax", *(f"{p}+alloc" for p in steps[1:4])]
