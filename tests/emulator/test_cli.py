"""``python -m emulator`` with torch blocked from import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import emulator.__main__ as cli
from emulator.memory.budget import LIMIT_VARIABLE
from pef_schema import Program, read_pef, write_pef
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests import warm
from tests.models.zoo import ZOO
from tests.pef_schema.cases import edit
from tests.tracing import trace

ROOT = Path(__file__).parents[2]
_BLOCKED = (
    "import sys; sys.modules['torch'] = None; from emulator.__main__ import main; "
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEF of the MLP with its inputs and weights as ``.npz``, and what torch makes of them."""
    folder = tmp_path_factory.mktemp("cli")
    torch.manual_seed(3)
    model, inputs = ZOO["mlp"].model(), ZOO["mlp"].inputs()
    traced = trace(model, inputs)
    write_pef(folder / "mlp.pef", build_program(traced, [], CompileOptions(name="mlp")))
    np.savez(folder / "inputs.npz", x=inputs[0].numpy(), y=inputs[1].numpy())
    weights = {
        s.name: s.tensor.detach().numpy()
        for s in traced.sources
        if s.name.startswith("mlp__") and s.tensor is not None
    }
    np.savez(folder / "weights.npz", **weights)
    np.save(folder / "loss.npy", model(*inputs)[0].item())
    return folder


def test_runs_with_torch_blocked_and_gives_torchs_loss(files: Path) -> None:
    command = [sys.executable, "-c", _BLOCKED, "run", str(files / "mlp.pef")]
    command += [str(files / "inputs.npz"), "--weights", str(files / "weights.npz")]
    command += ["--output", str(files / "out.npz")]
    done = warm.finished(command, server=warm.JAX)
    assert done.returncode == 0, done.stderr
    out = np.load(files / "out.npz")
    loss = out["mlp__criterion__crossentropyloss__outputs__0"]
    np.testing.assert_allclose(loss, np.load(files / "loss.npy"), rtol=2e-6)
    assert "ms per run" in done.stdout


def test_missing_weights_are_drawn_and_said(files: Path, capsys: pytest.CaptureFixture) -> None:
    code = cli.main(["run", str(files / "mlp.pef"), str(files / "inputs.npz"), "--json"])
    captured = capsys.readouterr()
    assert code == 0
    assert "buffer(s) are in no .npz file: they are drawn with seed 0" in captured.err
    assert len(json.loads(captured.out)["outputs"]) == 2


def test_bad_file_exits_with_3(files: Path, capsys: pytest.CaptureFixture) -> None:
    (files / "cut.pef").write_bytes((files / "mlp.pef").read_bytes()[:-5])
    assert cli.main(["verify", str(files / "cut.pef")]) == 3
    assert cli.main(["verify", str(files / "absent.pef")]) == 3
    assert "absent.pef" in capsys.readouterr().err


def test_verify_says_good_of_what_runs_alone(
    files: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["verify", str(files / "mlp.pef")]) == 0
    assert "mlp.pef: good (mlp, 2 sections)" in capsys.readouterr().out
    program = read_pef(files / "mlp.pef")
    graph = program.graphs[0]
    first = next(i for i, node in enumerate(graph.nodes) if node.op == "aten.linear.default")
    line = graph.nodes[first].source
    for op, text in (
        ("aten.no_such_op.default", "the device has no operation of that name"),
        ("aten.bmm.default", "3 arguments, it takes 2 at most"),
        ("aten.addmm.default", f"aten.addmm.default in mlp.fc1 at {line}: "),
    ):
        write_pef(files / "op.pef", edit(program, f"graphs.0.nodes.{first}", op=op))
        assert cli.main(["verify", str(files / "op.pef")]) == 3
        captured = capsys.readouterr()
        assert text in captured.err and captured.out == ""
    monkeypatch.setenv(LIMIT_VARIABLE, "1000")
    assert cli.main(["verify", str(files / "mlp.pef")]) == 1
    assert "the device may use 1000 bytes" in capsys.readouterr().err


def test_verify_says_in_its_help_what_it_does(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["verify", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "lower every section and every schedule" in text
    assert "Nothing is compiled or run." in text


def test_a_program_without_graphs_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    parts = dict.fromkeys(
        ("regions", "symbols", "graphs", "optimizers", "argins", "sections", "schedules"), ()
    )
    nothing: Any = Program
    write_pef(
        tmp_path / "nothing.pef", nothing(name="n", mapping="section", inference=True, **parts)
    )
    assert cli.main(["verify", str(tmp_path / "nothing.pef")]) == 0
    assert cli.main(["run", str(tmp_path / "nothing.pef")]) == 1
    assert "program n: it has no graph, so there is nothing to run" in capsys.readouterr().err


def test_section_types_and_inspect(files: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = [str(files / "mlp.pef"), str(files / "inputs.npz"), "--section-types"]
    assert cli.main(["run", *arguments, "fwd"]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", str(files / "mlp.pef")]) == 0
    text = capsys.readouterr().out
    assert "mlp__fc1__weight  [16, 12] float32" in text
    assert "FWD" in text
    assert cli.main(["inspect", str(files / "mlp.pef"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "mlp"


def test_usage_error_exits_with_2(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as info:
        cli.main(["walk"])
    assert info.value.code == 2
    capsys.readouterr()


def test_each_mistake_of_run_is_one_line(files: Path, capsys: pytest.CaptureFixture) -> None:
    pef, good = str(files / "mlp.pef"), str(files / "inputs.npz")
    np.save(files / "in.npy", np.zeros((6, 12), np.float32))
    np.savez(files / "wide.npz", x=np.zeros((6, 12)))
    np.savez(files / "bad.npz", x=np.zeros((3, 12), np.float32))
    np.savez(files / "unknown.npz", z=np.zeros(3))
    np.savez(files / "pickled.npz", x=np.array([{}], dtype=object))
    (files / "text.npz").write_text("no archive")
    mistakes = {
        "one array without a name, [6, 12] float32, expected an .npz of named ones. "
        "Make it with numpy.savez(path, x=..., y=...).": [str(files / "in.npy")],
        "there is no array for input x [4, 12] float32, y [4] int64. Make a file with "
        "numpy.savez('inputs.npz', x=..., y=...) and pass it: python -m emulator run": [],
        "text.npz: not an .npz file of plain arrays (File is not a zip file)": [
            str(files / "text.npz")
        ],
        "tensor x: found shape [3, 12] float32": [str(files / "bad.npz")],
        "no tensor or region of that name": [str(files / "unknown.npz")],
        "pickled.npz: not an .npz file of plain arrays": [str(files / "pickled.npz")],
        "array x: found float64, the program was compiled for float32. "
        "Save it as x=array.astype('float32').": [str(files / "wide.npz")],
        "--section-types: found forward; this program has FWD, BCKWD": [
            *(good, "--section-types", "forward")
        ],
        "its folder does not exist. Name an .npz file in a folder": [
            *(good, "--output", str(files / "nowhere" / "out.npz"))
        ],
        "a folder. Name an .npz file": [good, "--output", str(files)],
    }
    for text, arguments in mistakes.items():
        assert cli.main(["run", pef, *arguments]) == 1
        captured = capsys.readouterr()
        assert text in captured.err and captured.out == ""
        assert len(captured.err.splitlines()) == 1, captured.err
