"""``compile --compiled-stats-json``: what was compiled, as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.costs.memory import memory_need, schedule_steps
from emulator.costs.steps import section_cost
from pef_schema import read_pef
from samba.errors import ArgumentError
from tests.pages import page
from tests.samba.worlds import World

ROOT = Path(__file__).parents[3]


def compiled(folder: Path, stats: Path | str) -> str:
    scene = World(name="stats").build()
    return scene.compile(folder, command="compile", compiled_stats_json=str(stats))


def test_it_says_what_the_program_says(tmp_path):
    pef = compiled(tmp_path, tmp_path / "stats.json")
    found = json.loads((tmp_path / "stats.json").read_text())
    program = read_pef(pef)
    assert (found["format"], found["version"], found["pef"]) == ("samba.compiled_stats", 1, pef)
    assert [s["name"] for s in found["sections"]] == [s.name for s in program.sections]
    for told in found["sections"]:
        assert told["cost"] == section_cost(program, told["id"]).as_dict()
    need = memory_need(program, schedule_steps(program, 0))
    assert found["graphs"][0]["peak_bytes"] == need.peak
    assert "moments" not in found["graphs"][0]
    text = page("run.md", "Where does the memory go?")
    assert [key for key in found if f"`{key}`" not in text] == []
    assert [key for key in found["sections"][0] if f"`{key}`" not in text] == []


def test_other_commands_do_not_write_it(tmp_path):
    scene = World(name="stats").build()
    scene.compile(tmp_path, command="run", compiled_stats_json=str(tmp_path / "stats.json"))
    assert not (tmp_path / "stats.json").exists()


@pytest.mark.parametrize("where", ["none/stats.json", ".", "stats/stats.pef", "a\0b"])
def test_a_file_that_cannot_be_is_refused_before_anything_is_compiled(tmp_path, where):
    (tmp_path / "stats").mkdir()
    with pytest.raises(ArgumentError, match="compiled-stats-json"):
        compiled(tmp_path, f"{tmp_path}/{where}")
    assert list(tmp_path.rglob("*.pef")) == []


def test_the_switch_writes_it_beside_the_pef(tmp_path):
    scene = World(name="stats").build()
    asked = {"command": "compile", "compiled_stats_json": str(tmp_path / "stats.json")}
    pef = Path(scene.compile(tmp_path, **asked, dump_compiled_stats_json=True))
    beside = pef.with_suffix(".stats.json")
    assert beside.read_text() == (tmp_path / "stats.json").read_text()
    assert json.loads(beside.read_text())["format"] == "samba.compiled_stats"
