"""``python -m samba inspect``: what it shows; test_commands.py has what ``memory`` does alike."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

import samba
from emulator.costs.description import compiled_stats, describe
from emulator.costs.memory import memory_need, schedule_steps
from emulator.costs.steps import node_cost, schedule_cost, section_cost
from pef_schema import Program, read_pef, write_pef
from pef_schema.module_paths import plain_path
from samba.compiler.build import build_program
from samba.compiler.forms.listing import overview, pef_log
from samba.compiler.sections import CompileOptions
from samba.inspection import memory_command
from samba.inspection.inspect_command import run
from samba.support.layout import bytes_text, count_text
from tests.pages import page
from tests.pef_schema.samples import custom, nothing, training
from tests.samba.inspection.programs import chain, keys_of, two_graphs
from tests.tracing import trace

ROOT = Path(__file__).parents[3]
Printed = pytest.CaptureFixture[str]


def shown(capsys: Printed, *arguments: str) -> str:
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_each_section_names_its_layer(
    lenet: Program, lenet_pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = shown(capsys, lenet_pef, "--sections").splitlines()
    names = {
        f"fwd_{i}": lenet.graphs[0].nodes[section.steps[0].nodes[0]]
        for i, section in enumerate(lenet.sections)
        if section.name.startswith("fwd")
    }
    assert len(names) > 10
    for name, node in names.items():
        (row,) = [line for line in lines if f" {name} " in line]
        module = plain_path(node.module, root="lenet")
        assert f"{module}: {node.op.split('.')[1]}" in row
    (row,) = [line for line in lines if " opt_adamw0 " in line]
    assert row.endswith("  conv1, conv2, fc1, fc2, fc3: adamw:10")


def test_the_overview(lenet_pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(capsys, lenet_pef)
    places = [text.index(f"\n{what}") for what in ("sections", "memory", "graph lenet", "metadata")]
    assert places == sorted(places)
    assert text.startswith("lenet: training, section mapping, graphamp_preset=mp0")
    for part in (
        f"{lenet_pef}: {os.path.getsize(lenet_pef):,} bytes, format 1, digest ",
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
    sections = read_pef(lenet_pef).sections
    assert f"--sections {len(sections)} sections" in text.replace("\n", " ")


def test_lists(lenet: Program, lenet_pef: str, capsys: Printed) -> None:
    text = shown(capsys, lenet_pef, "--nodes", "--regions")
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


def test_every_key_of_the_json_is_documented(lenet_pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, lenet_pef, "--json"))
    assert (found["format"], found["version"]) == ("samba.inspect", 2)
    text = page("program.md", "What is in a PEF, and where do two differ?")
    missing = sorted(key for key in keys_of(found) if f"`{key}`" not in text)
    assert missing == []


def test_json_says_what_the_program_says(lenet: Program, lenet_pef: str, capsys: Printed) -> None:
    found = json.loads(shown(capsys, lenet_pef, "--json"))
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
    memory = found["graphs"][0]["memory"]
    highest, places = memory["peak"], memory["outside"]
    assert highest["bytes"] == memory["peak_bytes"] == max(c["bytes"] for c in memory["calls"])
    alive = sum(held["bytes"] for held in highest["alive"]) + highest["scratch_bytes"]
    by_role = sum(places.values()) + sum(highest["inside"].values()) + highest["scratch_bytes"]
    assert alive == highest["bytes"] == by_role
    sizes = [held["bytes"] for held in highest["alive"]]
    assert sizes == sorted(sizes, reverse=True)


def test_every_command_tells_the_same_peak(lenet: Program, lenet_pef: str, capsys: Printed) -> None:
    wanted = memory_need(lenet, schedule_steps(lenet, 0)).peak
    (graph,) = describe(lenet)["graphs"]
    assert graph["memory"]["peak_bytes"] == wanted
    assert compiled_stats(describe(lenet))["graphs"] == [graph["memory"]]
    assert memory_command.run([lenet_pef, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["graphs"]
    del told["moments"]
    assert told == graph["memory"]
    for text in (shown(capsys, lenet_pef), pef_log(lenet)):
        assert f"peak: {bytes_text(wanted)} in call " in text


def test_an_output_says_what_made_it() -> None:
    """Its name alone is that of a view that the loss makes of it."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(4, 1)
            self.loss = torch.nn.MSELoss()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.head(x).squeeze(-1)
            return self.loss(out, y), out

    net = Net()
    inputs = samba.ones(3, 4, name="x"), samba.ones(3, name="y")
    graph = trace(net, inputs)
    program = build_program(graph, [], CompileOptions(name="net"))
    found = describe(program)
    loss, out = found["graphs"][0]["outputs"]
    assert out["name"] == "net__loss__broadcast_tensors__outputs__0"
    made = out["made_by"]
    assert (made["operation"], made["module"]) == ("linear", "net__head")
    assert loss["made_by"]["operation"] == "mse_loss"
    text = overview(found, width=200)
    assert "float32[3] (linear of head at test_inspect.py:" in text
    assert "float32[] (loss, mse_loss of loss at test_inspect.py:" in text


def test_costs_are_those_that_estimate_goes_by(
    lenet: Program, lenet_pef: str, capsys: Printed
) -> None:
    found = json.loads(shown(capsys, lenet_pef, "--json"))
    for i, told in enumerate(found["sections"]):
        assert told["cost"] == section_cost(lenet, i).as_dict()
    graph = lenet.graphs[0]
    for node, told in zip(graph.nodes, found["graphs"][0]["nodes"], strict=True):
        assert told["flops"] == node_cost(graph, node).flops
    assert found["graphs"][0]["cost"] == schedule_cost(lenet, 0).as_dict()
    (row,) = [x for x in shown(capsys, lenet_pef, "--sections").splitlines() if " fwd_0 " in x]
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
