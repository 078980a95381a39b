"""Exports are opened by the tools that they are for, and hold what the PEF holds."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pygraphviz
import pytest
import torch
from jax import export
from torch.onnx._internal.exporter._registration import ONNXRegistry

from emulator.device import Device
from emulator.native.library import without_native
from emulator.plans.executable_cache import compiled_or_kept
from emulator.plans.steps import all_steps
from emulator.plans.xla_options import xla_options
from emulator.trace_settings import wide_types
from pef_schema import Program, Role, read_pef, write_pef
from pef_schema.program_facts import modules_of, owners
from samba.compiler.forms.graphs import as_dot, graphs_as_dict
from samba.exporting.export_command import run
from samba.exporting.stablehlo import section_steps, stablehlo
from samba.utils.checkpoint import save_checkpoint
from tests.samba.exporting.models import MODELS
from tests.samba.inspection.programs import chain, two_graphs

FEW_RUNS = {("lenet", True), ("gpt", False)}
"""Portable runs of the fast tests: one that infers and one that trains."""
EACH = [pytest.param(n, marks=pytest.mark.slow if n == "resnet18" else ()) for n in MODELS]


class Pefs(dict[tuple[str, bool], str]):
    """The models' PEFs by name and whether they infer; each is compiled when it is first read."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, key: tuple[str, bool]) -> str:
        name, inference = key
        self[key] = MODELS[name].compiled(self._folder, inference=inference)
        return self[key]


@pytest.fixture(scope="module")
def pefs(tmp_path_factory: pytest.TempPathFactory) -> Pefs:
    return Pefs(tmp_path_factory.mktemp("pefs"))


# -- DOT ---------------------------------------------------------------------


def clusters(drawing: Any) -> dict[str, Any]:
    """All clusters of a drawing by name, whatever they are in."""
    found = {}
    for part in drawing.subgraphs():
        found |= {str(part.name): part} | clusters(part)
    return found


@pytest.mark.parametrize("name", EACH)
def test_dot_has_a_cluster_for_each_module_and_section(pefs: Pefs, name: str) -> None:
    program = read_pef(pefs[name, False])
    drawing = pygraphviz.AGraph(string=as_dot(program, [0]))
    graph = program.graphs[0]
    assert len(drawing.nodes()) == len(graph.nodes) + len(graph.inputs) + len(graph.outputs)
    found = clusters(drawing)
    paths = {node.module for node in graph.nodes}
    outer = {"__".join(p.split("__")[:i]) for p in paths for i in range(1, p.count("__") + 2)}
    assert {n.removeprefix("cluster_g0_m_") for n in found if "_m_" in n} == outer
    for index, section in enumerate(program.sections):
        for step in section.steps:
            if step.kind.name != "FWD":
                continue
            own = [c for n, c in found.items() if n.startswith(f"cluster_g0_s{index}_")]
            assert {c.graph_attr["label"] for c in own} == {section.name}
            inside = {str(n) for c in own for n in c.nodes()}
            assert inside == {f"n0_{i}" for i in step.nodes}
            said = {n.split("_", 3)[3] for n in found if n.startswith(f"cluster_g0_s{index}_")}
            assert said == set(modules_of(program, section, owners(program)))
    tips = drawing.get_node("n0_0").attr["tooltip"]
    assert graph.nodes[0].source in tips
    svg = drawing.draw(format="svg", prog="dot")
    assert svg.count(b'class="node"') == len(drawing.nodes())
    assert svg.count(b'class="edge"') == len(drawing.edges())


def test_dot_of_hostile_names_is_one_drawing() -> None:
    program = chain(
        ['a"];evil[label="x.relu', "b\\.sigmoid", "c\n};}.tanh", "__".join("deep" * 99)]
    )
    drawing = pygraphviz.AGraph(string=as_dot(program, [0]))
    assert len(drawing.nodes()) == 4 + 1 + 1
    assert not any("evil" in str(node) for node in drawing.nodes())
    assert "\x1b" not in as_dot(chain(["\x1b[2J.relu"]), [0])


def test_dot_of_several_graphs_has_a_cluster_for_each() -> None:
    program = two_graphs()
    drawing = pygraphviz.AGraph(string=as_dot(program, range(2)))
    assert {"cluster_g0", "cluster_g1"} <= set(clusters(drawing))


def test_options_of_compile_write_both_beside_the_pef(tmp_path: Path) -> None:
    path = MODELS["lenet"].compiled(tmp_path, inference=True, dump_traced_graph=True, plot=True)
    program = read_pef(path)
    made = Path(path)
    assert made.with_suffix(".dot").read_text() == as_dot(program, [0])
    found = json.loads(made.with_suffix(".graph.json").read_text())
    assert found == graphs_as_dict(program, [0])
    plain = MODELS["lenet"].compiled(tmp_path / "plain", inference=True)
    assert {p.suffix for p in Path(plain).parent.iterdir()} == {".pef", ".log"}


# -- JSON --------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
def test_json_is_the_whole_graph(pefs: Pefs, name: str) -> None:
    """A graph is computed from the JSON alone, with torch's own operations."""
    program = read_pef(pefs[name, True])
    found = json.loads(json.dumps(graphs_as_dict(program, [0]), allow_nan=False))
    (graph,) = found["graphs"]
    model = MODELS[name]
    held = {r.name: r.segment for r in program.regions}
    state = {f"{key}".replace(".", "__"): t for key, t in model.net.state_dict().items()}
    env: dict[int, Any] = dict(zip(graph["inputs"], model.inputs.values(), strict=True))
    for value in graph["values"]:
        if value["role"] in ("weight", "buffer"):
            env[value["id"]] = state[value["region"].partition("__")[2]]
        elif value["region"] is not None and held[value["region"]] >= 0:
            data = program.segments[held[value["region"]]]
            flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, value["dtype"]))
            env[value["id"]] = flat.reshape(value["shape"])

    def argument(arg: Any) -> Any:
        if isinstance(arg, list):
            return [argument(item) for item in arg]
        if not isinstance(arg, dict):
            return arg
        ((kind, what),) = arg.items()
        return {"value": env.get, "float": float, "dtype": lambda d: getattr(torch, d)}[kind](what)

    for node in graph["nodes"]:
        space, packet, overload = node["op"].split(".")
        function = getattr(getattr(getattr(torch.ops, space), packet), overload)
        args = [argument(a) for a in node["args"]]
        result = function(*args, **{k: argument(a) for k, a in node["kwargs"].items()})
        results = result if isinstance(result, (tuple, list)) else (result,)
        env |= {v: r for v, r in zip(node["outputs"], results, strict=False) if v is not None}
    with torch.no_grad():
        wanted = model.net(*model.inputs.values())
    for output, tensor in zip(graph["outputs"], wanted, strict=True):
        torch.testing.assert_close(env[output["value"]], tensor, rtol=1e-5, atol=1e-6)


def test_json_has_no_bare_infinity() -> None:
    program = chain(["clamp"])
    graph = program.graphs[0]
    node = dataclasses.replace(graph.nodes[0], args=(*graph.nodes[0].args, float("-inf"), 1e300))
    program = dataclasses.replace(program, graphs=(dataclasses.replace(graph, nodes=(node,)),))
    found = json.loads(json.dumps(graphs_as_dict(program, [0]), allow_nan=False))
    assert found["graphs"][0]["nodes"][0]["args"] == [{"value": 0}, {"float": "-inf"}, 1e300]


# -- StableHLO ---------------------------------------------------------------


def filled(program: Program) -> Device:
    """A device on which every region holds something, the same for the same program."""
    device, rng = Device(program), np.random.default_rng(11)
    for index, region in enumerate(program.regions):
        if region.role is Role.INPUT:
            shape, dtype = device.buffer_map.form(index)
            small = rng.integers(0, 8, shape) if dtype.kind in "iu" else rng.standard_normal(shape)
            device.write(index, np.asarray(small, dtype))
        elif region.role in (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE):
            shape, dtype = device.buffer_map.form(index)
            values = np.abs(rng.standard_normal(shape)) * 0.1
            device.write(index, np.asarray(values, dtype))
    return device


@pytest.mark.parametrize(
    ("name", "inference"),
    [
        pytest.param(
            name, inference, marks=() if (name, inference) in FEW_RUNS else pytest.mark.slow
        )
        for name in MODELS
        for inference in (True, False)
    ],
)
def test_a_portable_run_gives_the_same_bits(pefs: Pefs, name: str, inference: bool) -> None:
    program = read_pef(pefs[name, inference])
    steps = all_steps(program, 0)
    found = stablehlo(program, steps, promised=True)
    again = export.deserialize(bytearray(found.made.serialize()))
    device = filled(program)
    with without_native():
        plan = device.plan(steps)
    buffers = device.pool.buffers
    for home in plan.reads:
        if buffers[home] is None:
            device.zero_buffer(home)
    arguments = [np.array(buffers[home]) for home in plan.reads]
    names = [program.regions[home].name for home in plan.reads]
    assert [a.names for a in found.arguments] == [(name,) for name in names]
    # XLA fuses otherwise where results may not lie in memory of arguments.
    consumed = [i for i, place in enumerate(found.arguments) if place.consumed]
    device.run(plan)
    cpu = jax.devices("cpu")[0]
    with wide_types():
        jitted: Any = jax.jit(again.call, donate_argnums=consumed)
        lowered = jitted.lower(*arguments)
        results = compiled_or_kept(lowered, xla_options(cpu)).compiled(*arguments)
    assert len(results) == len(plan.writes) == len(found.results)
    for home, result in zip(plan.writes, results, strict=True):
        ours = np.asarray(device.pool.buffers[home])
        assert ours.dtype == result.dtype
        assert ours.tobytes() == np.asarray(result).tobytes(), program.regions[home].name


def test_the_text_says_what_its_arguments_are(pefs: Pefs) -> None:
    program = read_pef(pefs["lenet", False])
    found = stablehlo(program, section_steps(0, program))
    lines = found.text.splitlines()
    said = [line for line in lines if line.startswith("// ")]
    assert len(said) == len(found.arguments) + len(found.results)
    assert any("image float32[3, 1, 28, 28]" in line for line in said)
    assert found.made is None
    (main,) = [line for line in lines if "func.func public @main(" in line]
    assert main.count("%arg") == len(found.arguments)


# -- ONNX --------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def onnx_functions() -> Iterator[None]:
    """torch parses the source of its thousand ONNX functions at every export; here once."""
    if not os.environ["XLA_FLAGS"]:  # `make test-all` exports as torch does
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        functions = functools.cache(ONNXRegistry.from_torchlib)
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functions))
        yield


@pytest.mark.parametrize(
    ("name", "by_region"),
    [
        *(("lenet", True), ("gpt", False)),
        *(
            pytest.param(*way, marks=pytest.mark.slow)
            for way in (("lenet", False), ("gpt", True), ("resnet18", True), ("resnet18", False))
        ),
    ],
)
def test_onnx_gives_torchs_numbers(pefs: Pefs, name: str, by_region: bool, tmp_path: Path) -> None:
    model = MODELS[name]
    weights = tmp_path / ("w.safetensors" if by_region else "w.bin")
    if by_region:
        save_checkpoint(model.net, weights)
    else:
        torch.save(model.net.state_dict(), weights)
    out = tmp_path / "model.onnx"
    arguments = [pefs[name, True], "--format=onnx", f"--weights={weights}", "-o", str(out)]
    assert run(arguments) == 0
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    opened = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert [i.name for i in opened.get_inputs()] == list(model.inputs)
    found = opened.run(None, {key: t.numpy() for key, t in model.inputs.items()})
    with torch.no_grad():
        wanted = model.net(*model.inputs.values())
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


# -- the command -------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("error: ")


def test_what_has_no_onnx_says_why(
    pefs: Pefs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.onnx"
    capsys.readouterr()
    assert run([pefs["lenet", False], "--format=onnx", "-o", str(out)]) == 1
    assert "the program trains" in told(capsys)
    assert run([pefs["lenet", True], "--format=onnx", "-o", str(out)]) == 1
    line = told(capsys)
    assert "weights are missing: " in line and "--weights CHECKPOINT" in line
    wrong = {k: t[:1] for k, t in MODELS["lenet"].net.state_dict().items()}
    torch.save(wrong, tmp_path / "w.bin")
    more = ["--format=onnx", f"--weights={tmp_path / 'w.bin'}", "-o", str(out)]
    assert run([pefs["lenet", True], *more]) == 1
    assert "do not match" in told(capsys)
    more[1] = f"--weights={tmp_path / 'nothing'}"
    assert run([pefs["lenet", True], *more]) == 1
    assert "found no checkpoint" in told(capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--format=dot", "--section=fwd_0"], 2, "--section is for --format stablehlo"),
        (["--format=json", "--portable"], 2, "--portable is for --format stablehlo"),
        (["--format=dot", "--weights=w"], 2, "--weights is for --format onnx"),
        (["--format=dot", "--graph=nome"], 2, "it has no graph"),
        (["--format=stablehlo", "--section=fwd_x"], 2, "it has no section fwd_x"),
        (["--format=dot", "-o", "/nonexistent/x.dot"], 1, "/nonexistent"),
    ],
)
def test_wrong_usage_is_one_error(
    pefs: Pefs, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([pefs["lenet", True], *arguments]) == code
    assert said in told(capsys)


def test_a_format_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["x.pef", "--format=svg"])
    assert caught.value.code == 2
    assert "invalid choice: 'svg'" in capsys.readouterr().err


def test_bad_files_are_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged.pef"
    damaged.write_bytes(b"SAMB" * 100)
    for path in (tmp_path / "missing.pef", tmp_path, damaged):
        assert run([str(path), "--format=json"]) == 3
        assert str(path) in told(capsys)


def test_a_run_of_one_graph_is_to_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.pef"
    write_pef(path, two_graphs())
    for form in ("stablehlo", "onnx"):
        assert run([str(path), f"--format={form}"]) == 2
        assert "name it with --graph" in told(capsys)
    assert run([str(path), "--format=stablehlo", "--graph=second"]) == 0
    assert "func.func public @main" in capsys.readouterr().out


def test_the_pef_is_not_written_over(
    pefs: Pefs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.pef"
    path.write_bytes(Path(pefs["lenet", True]).read_bytes())
    before = path.read_bytes()
    assert run([str(path), "--format=dot", "-o", str(path)]) == 2
    assert "would replace the PEF" in told(capsys)
    assert path.read_bytes() == before
