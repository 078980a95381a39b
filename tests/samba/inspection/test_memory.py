"""``python -m samba memory``: what it shows; test_commands.py has what ``inspect`` does alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pef_schema import Program, write_pef
from samba.inspection.memory_command import run
from tests.pages import page
from tests.pef_schema.samples import custom, nothing, training
from tests.samba.inspection.programs import chain, keys_of, two_graphs

ROOT = Path(__file__).parents[3]
Printed = pytest.CaptureFixture[str]


def shown(capsys: Printed, *arguments: str) -> str:
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_text_says_what_the_data_say(
    lenet_pef: str, lenet: Program, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (graph,) = json.loads(shown(capsys, lenet_pef, "--json"))["graphs"]
    text = shown(capsys, lenet_pef, "--alive", "0")
    for call in graph["calls"]:
        assert re.search(rf"^ *{call['call_id']} +{call['types'][0]} +{call['name']} ", text, re.M)
    peak = graph["peak"]
    names = {call["call_id"]: call["name"] for call in graph["calls"]}
    assert f"in call {peak['call_id']} ({names[peak['call_id']]}), while it computes " in text
    assert peak["operation"] in text
    for held in peak["alive"]:
        assert f"  {held['name']} " in text
    assert sum(held["bytes"] for held in peak["alive"]) + peak["scratch_bytes"] == peak["bytes"]
    assert {role for held in peak["alive"] for role in [held["role"]]} >= {"weight", "activation"}
    short = shown(capsys, lenet_pef, "--alive", "2")
    assert f"and {len(peak['alive']) - 2} more: --alive 0 lists all" in short


def test_every_key_of_the_json_is_documented(lenet_pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, lenet_pef, "--json"))
    assert (found["format"], found["version"], found["pef"]) == ("samba.memory", 1, lenet_pef)
    text = page("run.md", "Where does the memory go?")
    assert sorted(key for key in keys_of(found) if f"`{key}`" not in text) == []


def test_one_graph_of_several(tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "two.pef")
    write_pef(pef, two_graphs())
    assert shown(capsys, pef).count("graph ") == 2
    assert shown(capsys, pef, "--graph", "second").startswith("graph second of ")


def test_programs_with_little_in_them(tmp_path: Path, capsys: Printed) -> None:
    for program in (nothing(), custom(), training()):
        pef = str(tmp_path / f"{program.name}.pef")
        write_pef(pef, program)
        text = shown(capsys, pef)
        assert program.name in text
        json.loads(shown(capsys, pef, "--json"))


def test_long_schedules_are_cut_in_the_text_alone(tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "long.pef")
    write_pef(pef, chain([f"m{i}.relu" for i in range(300)]))
    text = shown(capsys, pef)
    assert "and 260 more: --json has all" in text and len(text.splitlines()) < 80
    assert len(json.loads(shown(capsys, pef, "--json"))["graphs"][0]["calls"]) == 300
