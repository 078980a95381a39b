"""``python -m samba inspect``: what it shows, without torch and jax, at any width, of any file."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from emulator.costs.steps import node_cost, schedule_cost, section_cost
from pef_schema import Program, read_pef, write_pef
from samba.compiler.build import build_program
from samba.compiler.options import CompileOptions
from samba.inspection.description import describe
from samba.inspection.estimate import count_text
from samba.inspection.inspect_command import run
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
    """LeNet with a section for each operation, and an optimizer that clips."""
    torch.manual_seed(0)
    model, inputs = ZOO["lenet"].model(), ZOO["lenet"].inputs()
    optimizer = torch.optim.AdamW(model.parameters())
    options = CompileOptions(name="lenet", optim_level="o0", metadata=(("made", "by a test"),))
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
    """In a process in which importing them fails, all forms of both commands work."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'jax', 'jaxlib'):\n    sys.modules[name] = None\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for more in (["inspect", pef, "--json"], ["inspect", pef, "--nodes"], ["diff", pef, pef]):
        done = finished([sys.executable, "-m", "samba", *more], cwd=ROOT, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    blocked = [sys.executable, "-c", "import torch"]
    assert "ModuleNotFoundError" in finished(blocked, cwd=ROOT, env=env).stderr


def test_each_section_names_its_layer(
    lenet: Program, pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = shown(capsys, pef, "--sections").splitlines()
    names = {
        f"fwd_{i}": lenet.graphs[0].nodes[section.steps[0].nodes[0]]
        for i, section in enumerate(lenet.sections)
        if section.name.startswith("fwd")
    }
    assert len(names) > 10
    for name, node in names.items():
        (row,) = [line for line in lines if f" {name} " in line]
        assert f"{node.module}: {node.op.split('.')[1]}" in row
    (row,) = [line for line in lines if " opt_adamw0 " in line]
    assert row.endswith("  lenet__{conv1, conv2, fc1, fc2, fc3}: adamw:10")


def test_the_overview(pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(capsys, pef)
    places = [text.index(f"\n{what}") for what in ("sections", "memory", "graph lenet", "metadata")]
    assert places == sorted(places)
    assert text.startswith("lenet: training, section mapping, graphamp_preset=mp0")
    for part in (
        f"{pef}: {os.path.getsize(pef):,} bytes, format 1, digest ",
        "peak: ",
        "losses     lenet__cross_entropy",
        "inputs     x float32[",
        "precision  float32: ",
        "schedule   0-",
        "adamw0  adamw  10 parameters  ",
        "lr            lr            0.001",
        "made: by a test",
    ):
        assert part in text, part
    sections = read_pef(pef).sections
    assert f"--sections {len(sections)} sections" in text.replace("\n", " ")


def test_lists(lenet: Program, pef: str, capsys: Printed) -> None:
    text = shown(capsys, pef, "--nodes", "--regions")
    for node in lenet.graphs[0].nodes:
        assert node.source.rpartition("/")[2] in text
    assert "lines are below " in text
    for region in lenet.regions:
        assert region.name in text.replace("\n", "").replace(" ", "")
    assert "always" in text


def test_long_lists_are_cut_in_the_overview_alone(tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "long.pef")
    write_pef(pef, chain([f"m{i}.relu" for i in range(1200)]))
    text = shown(capsys, pef)
    assert len(text.splitlines()) < 100
    assert "and 1,160 more: --sections lists all" in text
    assert "0-1199:fwd_0..fwd_1199" in text
    assert "fwd_1199  " in shown(capsys, pef, "--sections")


@pytest.mark.parametrize("columns", [20, 40, 80, 160])
def test_every_line_keeps_to_the_terminal(
    columns: int, pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for more in ([], ["--nodes", "--regions", "--sections", "--metadata"]):
        text = shown(capsys, pef, *more)
        assert max(map(len, text.splitlines())) <= columns


def keys_of(item: Any) -> set[str]:
    """Keys of the objects in a description, but for those that are names of the program."""
    if isinstance(item, list):
        return set().union(*map(keys_of, item))
    if not isinstance(item, dict):
        return set()
    found = set(item)
    for key, value in item.items():
        named = key in (
            *("metadata", "operations", "by_role", "precision", "options"),
            "product_flops_by_dtype",
        )
        if not named and (key != "hyperparameters" or isinstance(value, list)):
            found |= keys_of(value)
    return found


def test_every_key_of_the_json_is_documented(pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, pef, "--json"))
    assert (found["format"], found["version"]) == ("samba.inspect", 1)
    text = page("program.md", "What is in a PEF, and where do two differ?")
    missing = sorted(key for key in keys_of(found) if f"`{key}`" not in text)
    assert missing == []


def test_json_says_what_the_program_says(lenet: Program, pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, pef, "--json"))
    graph = lenet.graphs[0]
    assert [node["op"] for node in found["graphs"][0]["nodes"]] == [n.op for n in graph.nodes]
    assert [node["line"] for node in found["graphs"][0]["nodes"]] == [n.source for n in graph.nodes]
    for section, told in zip(lenet.sections, found["sections"], strict=True):
        assert told["types"] == [kind.name for kind in section.kinds]
        assert told["steps"][0]["reads"] == list(section.steps[0].reads)
        for node in section.steps[0].nodes:
            assert told["id"] in found["graphs"][0]["nodes"][node]["sections"]
    for region, told in zip(lenet.regions, found["regions"], strict=True):
        assert (told["name"], told["bytes"]) == (region.name, region.nbytes)
        assert bool(told["life"]) == region.role.is_transient == (not told["kept"])
    highest = found["graphs"][0]["peak"]
    assert highest["bytes"] == max(m["bytes"] for m in found["graphs"][0]["memory"])
    alive = sum(found["regions"][i]["bytes"] for i in highest["alive"])
    assert alive == highest["bytes"] == sum(highest["by_role"].values())


def test_costs_are_those_that_estimate_goes_by(lenet: Program, pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, pef, "--json"))
    for i, told in enumerate(found["sections"]):
        assert told["cost"] == section_cost(lenet, i).as_dict()
    graph = lenet.graphs[0]
    for node, told in zip(graph.nodes, found["graphs"][0]["nodes"], strict=True):
        assert told["flops"] == node_cost(graph, node).flops
    assert found["graphs"][0]["cost"] == schedule_cost(lenet, 0).as_dict()
    (row,) = [x for x in shown(capsys, pef, "--sections").splitlines() if " fwd_0 " in x]
    flops = section_cost(lenet, 0).flops
    assert flops > 1000 and f" {count_text(flops)}  " in row


def test_numbers_that_json_does_not_have_are_texts() -> None:
    program = training()
    lr = dataclasses.replace(program.argins[0], default=float("inf"))
    found = describe(dataclasses.replace(program, argins=(lr, *program.argins[1:])))
    assert found["hyperparameters"][0]["default"] == "inf"
    json.dumps(found, allow_nan=False)


def test_one_graph_of_several(tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "two.pef")
    write_pef(pef, two_graphs())
    text = shown(capsys, pef)
    assert "graph tiny: 1 node" in text and "graph second: 1 node" in text
    text = shown(capsys, pef, "--graph", "second")
    assert "graph tiny" not in text and "tiny.fwd" not in text and "second.fwd" in text
    found = json.loads(shown(capsys, pef, "--graph", "second", "--json"))
    assert [s["id"] for s in found["sections"]] == [1]
    assert [r["name"] for r in found["regions"]] == ["x", "second_y"]
    assert run([pef, "--graph", "third"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {pef}: it has no graph third. Its graphs are tiny, second.\n"


def test_metadata_that_says_nothing_is_left_to_its_list(tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "net.pef")
    entries = {f"key{i:02}": "None" if i < 5 else f"value\n of {i}" for i in range(25)}
    write_pef(pef, dataclasses.replace(training(), metadata=tuple(sorted(entries.items()))))
    text = shown(capsys, pef)
    assert "key00" not in text and "  key05: value of 5\n" in text and "key17" not in text
    assert "and 13 more: --metadata lists all" in text
    text = shown(capsys, pef, "--metadata")
    assert "  key00: None\n" in text and "  key24: value\n     of 24\n" in text


def test_programs_with_little_in_them(tmp_path: Path, capsys: Printed) -> None:
    for program, part in ((nothing(), "no sections"), (custom(), "gradients  Sign.backward")):
        pef = str(tmp_path / f"{program.name}.pef")
        write_pef(pef, program)
        assert part in shown(capsys, pef)
        shown(capsys, pef, "--nodes", "--regions", "--sections")
        json.loads(shown(capsys, pef, "--json"))


def test_bad_files_are_one_error(pef: str, tmp_path: Path, capsys: Printed) -> None:
    data = Path(pef).read_bytes()
    (tmp_path / "cut.pef").write_bytes(data[:-9])
    (tmp_path / "flipped.pef").write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    (tmp_path / "empty.pef").write_bytes(b"")
    (tmp_path / "zip.pef").write_bytes(b"PK\x03\x04" + bytes(100))
    for name in ("cut.pef", "flipped.pef", "empty.pef", "zip.pef", "none.pef", ""):
        path = str(tmp_path / name)
        for more in ([], ["--json"], ["-o", str(tmp_path / "out.txt")]):
            assert run([path, *more]) == 3
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith(f"error: {path}") and captured.err.count("\n") == 1
    assert not (tmp_path / "out.txt").exists()


def test_wrong_usage(capsys: Printed) -> None:
    for arguments in ([], ["a.pef", "b.pef"], ["--wide", "a.pef"]):
        with pytest.raises(SystemExit) as caught:
            run(arguments)
        assert caught.value.code == 2
    capsys.readouterr()


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
    assert read_pef(pef).name == "lenet"


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_no_text_of_a_file_steers_the_terminal(
    field: Field, tmp_path: Path, capsys: Printed
) -> None:
    for name, program in PROGRAMS.items():
        for text in (NAME, TEXT):
            forged = texts(program, lambda f, t, text=text: t + text if f == field else t)
            path = tmp_path / f"{name}.pef"
            path.write_bytes(encode_unchecked(forged))
            for more in ([], ["--json"], ["--nodes", "--regions", "--sections", "--metadata"]):
                code = run([str(path), *more])
                captured = capsys.readouterr()
                assert not foreign(captured.out + captured.err)
                assert code in (0, 3)
