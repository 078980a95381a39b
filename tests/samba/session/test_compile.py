"""What ``compile`` writes: the PEF, its path, its log; and what it leaves alone."""

from __future__ import annotations

import copy
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import samba
import samba.utils as utils
from pef_schema import read_pef
from pef_schema.program import Role
from samba.errors import ArgumentError
from samba.utils.argparser import parse_app_args
from tests.api.covers import covers
from tests.pages import without_sizes
from tests.samba.session.loading import load
from tests.samba.shared_traces import own_traces
from tests.samba.worlds import DROPOUT, INFERENCE, MLP, World
from tests.warm import finished


@pytest.fixture(autouse=True)
def traced():
    """What a trace leaves as it was, and that the next one is the same, is asserted here."""
    with own_traces():
        yield


@pytest.fixture
def scene():
    return MLP.build()


def compiled(scene, *args, **keywords) -> Path:
    return Path(
        samba.session.compile(scene.model, scene.inputs, scene.optimizer, *args, **keywords)
    )


@covers("samba.session.compile", ".compile(name)")
def test_where_the_pef_goes(scene, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert compiled(scene, config_dict={}) == tmp_path / "out/mlp/mlp.pef"
    assert compiled(scene, name="app", config_dict={}) == tmp_path / "out/app/app.pef"
    for name in ("net", "net.pef"):
        config = {"pef_name": name, "output_folder": "pefs"}
        assert compiled(scene, name="app", config_dict=config) == tmp_path / "pefs/net/net.pef"
    assert read_pef("pefs/net/net.pef").name == "app"
    lines = capsys.readouterr().out.splitlines()
    assert without_sizes(lines[-1]) == (
        f"PEF file {tmp_path}/pefs/net/net.pef created: N in T. "
        "Next: samba.utils.trace_graph(model, inputs, optimizer, pef=...)"
    )
    assert sorted(os.listdir(tmp_path / "pefs/net")) == ["net.pef", "net.pef.log"]


def test_the_parsed_command_line_is_obeyed(scene, tmp_path, monkeypatch):
    """Scripts that compile without ``config_dict`` mean what they were called with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("samba.argconf.parsed._last.value", None)
    parse_app_args(["compile", "--pef-name=cli", "--output-folder=there", "--inference", "--o0"])
    pef = compiled(scene)
    assert pef == tmp_path / "there/cli/cli.pef"
    program = read_pef(pef)
    assert program.inference and len(program.sections) > 3
    # What is passed comes before what was parsed.
    assert not read_pef(compiled(scene, inference=False)).inference
    assert compiled(scene, config_dict={"pef_name": "own"}) == tmp_path / "out/own/own.pef"


def test_compile_p_names_the_file_that_run_p_reads(scene, tmp_path, monkeypatch):
    """``compile … -p x.pef``, then ``run … -p x.pef``, as on the slides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("samba.argconf.parsed._last.value", None)
    parse_app_args(["compile", "-p", "app.pef"])
    assert compiled(scene) == tmp_path / "app.pef"
    assert (tmp_path / "app.pef.log").exists()
    args = parse_app_args(["run", "-p", "app.pef"])
    utils.trace_graph(scene.model, scene.inputs, scene.optimizer, pef=args.pef)
    samba.session.run(scene.inputs, scene.model.output_tensors)
    scene.host_step()
    scene.assert_follows()
    parse_app_args(["compile", "-p", "app.pef", "--pef-name", "other"])
    with pytest.raises(ArgumentError, match=r"'other' and 'app\.pef'.*expected one of them"):
        compiled(scene)


@pytest.mark.parametrize("form", [list, lambda inputs: dict(zip("yx", inputs[::-1], strict=True))])
@covers("samba.session.compile(inputs)", "samba.utils.trace_graph(inputs)")
def test_forms_of_trace_time_inputs(scene, tmp_path, form):
    inputs = form(scene.inputs)
    load(scene.model, inputs, tmp_path, scene.optimizer)
    samba.session.run(inputs, scene.model.output_tensors)
    scene.host_step()
    scene.assert_follows()


def test_accepted_keywords(scene, tmp_path):
    """Metadata is kept; the others, but for those in ``tests/api``, change nothing here."""
    ignored = {"metadata": {"conv": object()}, "squeeze_bs_dim": True, "init_output_grads": True}
    pef = compiled(
        scene,
        config_dict={"output_folder": str(tmp_path)},
        pef_metadata={"b": 2, "a": [1, "x"]},
        app_dir=utils.get_file_dir(__file__),
        **ignored,
    )
    assert read_pef(pef).metadata == (("a", "[1, 'x']"), ("b", "2"))
    scene.trace(pef=pef, loss_indices=[(0,)], mapping="section", distlearn_config="", dev_mode=True)
    scene.run(hyperparam_dict={}, data_parallel=False, reduce_on_rdu=False, graph_name=None)
    scene.host_step()
    scene.assert_follows()


def test_a_compile_leaves_the_model_as_it_was(tmp_path):
    """Values, classes, gradients, modes and the random state are those of before."""
    scene = World(name="kept", model=DROPOUT.model).build()
    scene.model.first.eval()
    scene.model(**scene.tensors)[0].sum().backward()
    before = copy.deepcopy(scene.model.state_dict())
    classes = [type(p) for p in scene.model.parameters()]
    modes = [m.training for m in scene.model.modules()]
    grads = [None if p.grad is None else p.grad.clone() for p in scene.model.parameters()]
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    for inference in (False, True):
        config = {"output_folder": str(tmp_path), "inference": inference}
        samba.session.compile(scene.model, scene.inputs, scene.optimizer, config_dict=config)
    assert torch.equal(torch.rand(3), want)
    assert [type(p) for p in scene.model.parameters()] == classes
    assert [m.training for m in scene.model.modules()] == modes
    assert all(p.requires_grad for p in scene.model.parameters())
    for name, value in scene.model.state_dict().items():
        assert torch.equal(value, before[name])
    for parameter, grad in zip(scene.model.parameters(), grads, strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)
    assert not scene.optimizer.state


def test_a_model_that_was_not_converted(tmp_path):
    """Names come from the paths, so conversion is a matter of taste."""
    scene = MLP.build()
    plain, host = copy.deepcopy(scene.host), scene.host
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    pef = samba.session.compile(
        plain, scene.inputs, optimizer, config_dict={"output_folder": str(tmp_path)}
    )
    assert read_pef(pef).regions[2].role is Role.WEIGHT
    utils.trace_graph(plain, scene.inputs, optimizer, pef=pef)
    samba.session.run(scene.inputs, plain.output_tensors)
    scene.host_step()
    samba.session.to_cpu(plain)
    for ours, theirs in zip(plain.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-7)
    assert samba.session.get_weight_names()[0] == "mlp__first__weight"


def test_inference_without_a_loss(tmp_path):
    """A model without a scalar output compiles, with and without an optimizer."""

    model = samba.from_torch_model_(nn.Linear(4, 3))
    optimizer = samba.optim.SGD(model.parameters(), lr=0.0)
    x = samba.randn(2, 4, name="x")
    for inference, kinds in ((True, {"FWD"}), (False, {"FWD", "BCKWD", "OPT"})):
        load(model, x, tmp_path, optimizer, config={"inference": inference})
        assert samba.session.get_section_types() == kinds


def test_spatial_mapping_puts_both_passes_in_one_section(scene, tmp_path):
    scene.compile(tmp_path, mapping="spatial")
    scene.trace(mapping="spatial")
    program = samba.session.program
    assert program.mapping == "spatial"
    assert [section.name for section in program.sections] == ["fwd_bckwd_0", "opt_sgd0"]
    assert samba.session.get_section_types() == {"FWD", "BCKWD", "OPT"}


# -- the log --------------------------------------------------------------------------------


def test_the_log_of_a_training_pef(scene, tmp_path):
    pef = compiled(scene, name="app", config_dict={"output_folder": str(tmp_path)})
    text = Path(f"{pef}.log").read_text()
    lines = text.splitlines()
    assert lines[0].startswith("app: training, section mapping")
    head = lines.index("sections") + 1
    rows = [re.split(r" {2,}", line.strip()) for line in lines[head : head + 4]]
    assert rows.pop(0)[:8] == ["id", "type", "name", "ops", "bytes", "FLOPs", "calls", "same as"]
    floats = 4
    weights = 6 * 4 + 6 + 3 * 6 + 3
    assert [row[:4] for row in rows] == [
        ["0", "FWD", "fwd_0", "4"],
        ["1", "BCKWD", "bckwd_0", rows[1][3]],
        ["2", "OPT", "opt_sgd0", "4"],
    ]
    # OPT: weights, gradients and momenta, and three hyperparameters of 8 bytes.
    assert rows[2][4] == f"{3 * floats * weights + 3 * 8} B"
    assert rows[2][6:8] == ["2", "-"] and rows[2][8].endswith(": sgd:4")
    assert [row[6] for row in rows] == ["0", "1", "2"]
    assert "linear:2 tanh cross_entropy_loss" in lines[head + 1]
    assert "  schedule   0:fwd_0, 1:bckwd_0, 2:opt_sgd0" in lines
    words = [line.split() for line in lines]
    for name, value in (("lr", "0.1"), ("momentum", "0.9"), ("weight_decay", "0")):
        assert [name, name, value] in words
    assert [str(floats * weights), "B"] * 2 + ["weight"] in words
    assert text.endswith("\n") and not any(line.endswith(" ") for line in lines)


def test_the_log_lists_every_section(tmp_path):
    scene = World(
        name="many",
        optimizer=lambda m: samba.optim.AdamW(m.parameters(), max_grad_norm=1.0),
        config={"optim_level": "o0", "grad_accumulation_steps": 2},
    ).build()
    pef = scene.compile(tmp_path)
    program = read_pef(pef)
    rows = re.findall(
        r"^ *(\d+) +([A-Z+]{2,}) +(\S+) ", Path(f"{pef}.log").read_text(), re.MULTILINE
    )
    assert [(int(i), name) for i, _, name in rows] == [
        (i, section.name) for i, section in enumerate(program.sections)
    ]
    kinds = [kind for _, kind, _ in rows]
    assert kinds == ["ZEROGRAD"] + ["FWD"] * 4 + ["BCKWD"] * 4 + ["GRADNORM", "OPT"]


# -- the same bytes ---------------------------------------------------------------------------

BOTH = World(
    name="both",
    model=DROPOUT.model,
    optimizer=lambda m: [
        samba.optim.AdamW(m.first.parameters(), max_grad_norm=1.0, argin_region_name="a"),
        samba.optim.SGD(m.second.parameters(), momentum=0.9),
    ],
    config={"optim_level": "o0", "grad_accumulation_steps": 2},
)
_COMPILE = """
import sys
from tests.samba.session.test_compile import BOTH, INFERENCE
for world in (BOTH, INFERENCE):
    world.build().compile(sys.argv[1])
print(hash("a"))
"""


def test_two_processes_write_the_same_bytes(tmp_path):
    """Nothing in a PEF depends on the order of a set or on an address."""
    ours = [Path(world.build().compile(tmp_path / "ours")) for world in (BOTH, INFERENCE)]
    done = finished([sys.executable, "-c", _COMPILE, str(tmp_path / "theirs")])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) != hash("a"), "sets have one order in both"
    for pef in ours:
        twin = tmp_path / "theirs" / pef.relative_to(tmp_path / "ours")
        assert pef.read_bytes() == twin.read_bytes()
        assert Path(f"{pef}.log").read_bytes() == Path(f"{twin}.log").read_bytes()


def test_two_compiles_in_one_process_write_the_same_bytes(tmp_path):
    paths = [Path(DROPOUT.build().compile(tmp_path / name)) for name in ("a", "b")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_weights_are_not_in_the_pef(tmp_path):
    """The PEF is made of the graph: other weights give the same bytes."""
    scene = INFERENCE.build()
    first = Path(scene.compile(tmp_path)).read_bytes()
    for parameter in scene.model.parameters():
        parameter.data.normal_()
    assert Path(scene.compile(tmp_path)).read_bytes() == first
