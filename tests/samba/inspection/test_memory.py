"""``python -m samba memory``: what it shows, without torch and jax, at any width, of any file."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pef_schema import Program, write_pef
from samba.compiler.build import build_program
from samba.compiler.options import CompileOptions
from samba.inspection.memory_command import run
from tests.emulator.test_terminal_text import FIELDS, PROGRAMS, Field, texts
from tests.models.zoo import ZOO
from tests.pages import page
from tests.pef_schema.forge import encode_unchecked
from tests.pef_schema.samples import custom, nothing, training
from tests.processes import finished
from tests.samba.inspection.programs import chain, two_graphs
from tests.terminal import NAME, TEXT, foreign
from tests.tracing import trace

ROOT = Path(__file__).parents[3]
Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def lenet() -> Program:
    torch.manual_seed(0)
    model, inputs = ZOO["lenet"].model(), ZOO["lenet"].inputs()
    optimizer = torch.optim.AdamW(model.parameters())
    options = CompileOptions(name="lenet", optim_level="o0")
    return build_program(trace(model, inputs), [optimizer], options)


@pytest.fixture(scope="module")
def pef(lenet: Program, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pef") / "lenet.pef"
    write_pef(path, lenet)
    return str(path)


def shown(capsys: Printed, *arguments: str) -> str:
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_neither_torch_nor_jax_is_needed(pef: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'jax', 'jaxlib'):\n    sys.modules[name] = None\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = finished([sys.executable, "-m", "samba", "memory", pef], cwd=ROOT, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "peak: " in done.stdout


def test_the_text_says_what_the_data_say(
    pef: str, lenet: Program, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (graph,) = json.loads(shown(capsys, pef, "--json"))["graphs"]
    text = shown(capsys, pef, "--alive", "0")
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
    short = shown(capsys, pef, "--alive", "2")
    assert f"and {len(peak['alive']) - 2} more: --alive 0 lists all" in short


def keys_of(item: Any) -> set[str]:
    if isinstance(item, list):
        return set().union(*map(keys_of, item))
    if not isinstance(item, dict):
        return set()
    found = set(item)
    for key, value in item.items():
        if key not in ("inside", "outside", "operations", "product_flops_by_dtype"):
            found |= keys_of(value)
    return found


def test_every_key_of_the_json_is_documented(pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, pef, "--json"))
    assert (found["format"], found["version"], found["pef"]) == ("samba.memory", 1, pef)
    text = page("run.md", "Where does the memory go?")
    assert sorted(key for key in keys_of(found) if f"`{key}`" not in text) == []


@pytest.mark.parametrize("columns", [20, 40, 80, 160])
def test_every_line_keeps_to_the_terminal(
    columns: int, pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, shown(capsys, pef).splitlines())) <= columns


def test_one_graph_of_several(tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "two.pef")
    write_pef(pef, two_graphs())
    assert shown(capsys, pef).count("graph ") == 2
    assert shown(capsys, pef, "--graph", "second").startswith("graph second of ")
    assert run([pef, "--graph", "third"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {pef}: it has no graph third. Its graphs are tiny, second.\n"


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


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_no_text_of_a_file_steers_the_terminal(
    field: Field, tmp_path: Path, capsys: Printed
) -> None:
    for name, program in PROGRAMS.items():
        for text in (NAME, TEXT):
            forged = texts(program, lambda f, t, text=text: t + text if f == field else t)
            path = tmp_path / f"{name}.pef"
            path.write_bytes(encode_unchecked(forged))
            for more in ([], ["--json"]):
                code = run([str(path), *more])
                captured = capsys.readouterr()
                assert not foreign(captured.out + captured.err)
                assert code in (0, 3)


def test_bad_files_are_one_error(pef: str, tmp_path: Path, capsys: Printed) -> None:
    data = Path(pef).read_bytes()
    (tmp_path / "cut.pef").write_bytes(data[:-9])
    (tmp_path / "zip.pef").write_bytes(b"PK\x03\x04" + bytes(100))
    for name in ("cut.pef", "zip.pef", "none.pef", ""):
        path = str(tmp_path / name)
        for more in ([], ["--json"], ["-o", str(tmp_path / "out.txt")]):
            assert run([path, *more]) == 3
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith(f"error: {path}") and captured.err.count("\n") == 1
    assert not (tmp_path / "out.txt").exists()


def test_wrong_usage(pef: str, capsys: Printed) -> None:
    for arguments in ([], [pef, "--wide"], [pef, "--alive", "-1"], [pef, "--alive", "many"]):
        with pytest.raises(SystemExit) as caught:
            run(arguments)
        assert caught.value.code == 2
    assert "found -1, wanted 0 or more" in capsys.readouterr().err


def test_the_output_goes_to_a_file(pef: str, tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out.json"
    printed = shown(capsys, pef, "--json")
    assert shown(capsys, pef, "--json", "-o", str(out)) == ""
    assert out.read_text() == printed
    for path, code, part in (
        (str(tmp_path / "none" / "x"), 1, "there is no folder"),
        (str(tmp_path), 1, "error: "),
        (pef, 2, "the output would replace the PEF"),
    ):
        assert run([pef, "-o", path]) == code
        assert part in capsys.readouterr().err
