"""Event files, opened by TensorBoard's own reader: graph, scalars and text."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

import samba
from emulator.costs.steps import node_cost
from pef_schema import Program, read_pef, write_pef
from samba.compiler.forms.tensorboard import event_file
from samba.errors import MissingPackage
from samba.exporting.export_command import run
from tests.processes import finished
from tests.samba.exporting.models import MODELS
from tests.samba.inspection.programs import chain, two_graphs

ROOT = Path(__file__).parents[3]


def opened(data: bytes, folder: Path) -> Any:
    """What TensorBoard's reader makes of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.out.tfevents.x").write_bytes(data)
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})  # all, no sample
    found.Reload()
    return found


def scalar(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in found.Tensors(tag)]


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_is_the_program_s(name: str, tmp_path: Path) -> None:
    program = read_pef(MODELS[name].compiled(tmp_path, inference=False))
    graph = program.graphs[0]
    drawn = opened(event_file(program, [0]), tmp_path / "run").Graph()
    nodes = {node.name: node for node in drawn.node}
    assert len(nodes) == len(drawn.node)
    for node in drawn.node:
        assert all(source.partition(":")[0] in nodes for source in node.input)
    computed = [n for n in drawn.node if n.op.startswith(("aten.", "samba."))]
    assert [n.op for n in computed] == [n.op for n in graph.nodes]
    sections = {section.name for section in program.sections}
    for theirs, ours in zip(computed, graph.nodes, strict=True):
        assert theirs.name.startswith(ours.module.replace("__", "/"))
        assert theirs.attr["line"].s.decode() == ours.source
        assert theirs.attr["operations"].i == node_cost(graph, ours).flops
        assert theirs.device in sections
        shapes = [tuple(d.size for d in s.dim) for s in theirs.attr["_output_shapes"].list.shape]
        assert shapes == [graph.values[v].shape for v in ours.outputs if v >= 0]
        assert len(theirs.input) == len(set(ours.refs()))
    inputs = [n.name for n in drawn.node if n.op == "input"]
    assert inputs == list(MODELS[name].inputs)
    assert sum(n.op == "output" for n in drawn.node) == len(graph.outputs)
    weights = {n.name.replace("/", "__") for n in drawn.node if n.op == "weight"}
    named = {r.name for r in program.regions if r.role.name == "WEIGHT"}
    assert weights == named


def test_scalars_and_text_are_those_of_the_sections(tmp_path: Path) -> None:
    program = read_pef(MODELS["lenet"].compiled(tmp_path, inference=False))
    found = opened(event_file(program, [0]), tmp_path / "run")
    calls = program.schedules[0].calls
    flops = scalar(found, "section/operations")
    assert [step for step, _ in flops] == list(range(len(calls)))
    assert max(figure for _, figure in flops) > 1e5
    assert all(figure > 0 for _, figure in scalar(found, "section/bytes"))
    assert len(scalar(found, "memory/most during a call")) == len(calls)
    (event,) = found.Tensors("sections")
    text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
    for call in calls:
        assert f"`{program.sections[call.section].name}`" in text
    assert "`lenet__conv1`" in text and "`conv2d`" in text


def test_several_graphs_are_scopes(tmp_path: Path) -> None:
    found = opened(event_file(two_graphs(), range(2)), tmp_path)
    assert {n.name.partition("/")[0] for n in found.Graph().node} == {"tiny", "second"}
    assert {"tiny/sections", "second/section/bytes"} <= set(found.Tags()["tensors"])
    one = opened(event_file(two_graphs(), [1]), tmp_path / "one")
    assert "section/bytes" in one.Tags()["tensors"]


def test_hostile_names_are_names(tmp_path: Path) -> None:
    program: Program = chain(["a/../b.relu", "\x1b[2J|`.tanh", "__.sigmoid", ".relu"])
    nodes = opened(event_file(program, [0]), tmp_path).Graph().node
    assert len({n.name for n in nodes}) == len(nodes)
    assert not any("\x1b" in n.name + n.device or n.name == ".." for n in nodes)


def test_the_option_of_compile_writes_it_beside_the_pef(tmp_path: Path) -> None:
    path = Path(MODELS["lenet"].compiled(tmp_path, inference=True, gen_tensorboard=True))
    (made,) = path.with_suffix(".tensorboard").iterdir()
    assert made.name == f"events.out.tfevents.{path.stem}"
    assert made.read_bytes() == event_file(read_pef(path), [0])
    again = Path(MODELS["lenet"].compiled(tmp_path, inference=True, gen_tensorboard=True))
    assert [again] == [path] and len(list(made.parent.iterdir())) == 1


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pef, out = tmp_path / "two.pef", tmp_path / "events.out.tfevents.two"
    write_pef(pef, two_graphs())
    assert run([str(pef), "--format=tensorboard", "-o", str(out)]) == 0
    assert out.read_bytes() == event_file(two_graphs(), range(2))
    for name in ("-", str(tmp_path / "graph.pb")):
        assert run([str(pef), "--format=tensorboard", "-o", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("tfevents in their name") == 2
    assert len(captured.err.splitlines()) == 2 and not (tmp_path / "graph.pb").exists()


def test_without_the_package_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingPackage, match=r"pip install 'sambaflow-emulator\[tensorboard\]'"):
        MODELS["lenet"].compiled(tmp_path, inference=True, gen_tensorboard=True)
    assert list(tmp_path.iterdir()) == []
    samba.session.reset()
    pef, out = tmp_path / "two.pef", tmp_path / "events.out.tfevents.two"
    write_pef(pef, two_graphs())
    assert run([str(pef), "--format=tensorboard", "-o", str(out)]) == 1
    assert "needs the package tensorboard" in capsys.readouterr().err
    assert not out.exists()


def test_neither_torch_nor_jax_is_needed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'jax', 'jaxlib'):\n    sys.modules[name] = None\n"
    )
    write_pef(tmp_path / "two.pef", two_graphs())
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "samba", "export", str(tmp_path / "two.pef")]
    command += ["--format=tensorboard", "-o", str(tmp_path / "events.out.tfevents.two")]
    done = finished(command, cwd=ROOT, env=env)
    assert (done.returncode, done.stderr) == (0, "")
