"""Every example runs every sub-command."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

import sambaflow.samba as samba
from examples import char_gpt, lenet, logreg, res_ffn
from tests.warm import finished

ROOT = Path(__file__).parents[2]
COMMANDS = ("compile", "run", "test", "measure-performance", "measure-sections")

SHORT_RUNS = {
    logreg: ["--num-steps=20"],
    res_ffn: ["--num-epochs=1"],
    lenet: ["--num-epochs=1"],
    char_gpt: ["--num-steps=5", "--sample=8"],
}
"""Arguments that keep ``run`` short."""

LONG = (char_gpt, lenet, res_ffn)
MODULES = pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=pytest.mark.slow if m in LONG else ()) for m in SHORT_RUNS],
    ids=lambda m: m.__name__,
)


def call(module, *argv: str) -> None:
    """Run one sub-command as a process of its own would: in a new session."""
    samba.session.reset()
    module.main(list(argv))


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@MODULES
def test_all_sub_commands(module, in_folder, capsys):
    call(module, "compile", "--pef-name=x")
    pef = in_folder / "out" / "x" / "x.pef"
    assert pef.stat().st_size > 0
    assert "FWD" in (in_folder / "out" / "x" / "x.pef.log").read_text()

    call(module, "run", f"--pef={pef}", *SHORT_RUNS[module])
    assert re.search(r"Loss: \d+\.\d{4}", capsys.readouterr().out)

    call(module, "test", f"--pef={pef}")
    assert "Test passed" in capsys.readouterr().out

    report = in_folder / "report.json"
    call(module, "measure-performance", f"--pef={pef}", "-n", "3", f"--bench-report-json={report}")
    printed = capsys.readouterr().out
    assert "e2e_latency" in printed and "throughput" in printed and "3 iterations" in printed
    assert json.loads(report.read_text())

    call(module, "measure-sections", f"--pef={pef}", "-n", "2")
    printed = capsys.readouterr().out
    for kind in ("FWD", "BCKWD", "OPT"):
        assert kind in printed


def accuracy(printed: str) -> float:
    found = re.search(r"Test Accuracy: (\d+\.\d{2})", printed)
    assert found, printed
    return float(found[1])


@pytest.mark.parametrize(
    ("module", "epochs", "least"),
    [
        (logreg, 10, 93.0),
        pytest.param(res_ffn, 15, 95.0, marks=pytest.mark.slow),
        pytest.param(lenet, 8, 94.0, marks=pytest.mark.slow),
    ],
)
def test_training_learns(module, epochs, least, in_folder, capsys):
    call(module, "compile", "--pef-name=x")
    call(module, "run", "--pef=out/x/x.pef", f"--num-epochs={epochs}")
    assert accuracy(capsys.readouterr().out) >= least


@pytest.mark.slow
def test_lenet_checkpoint_and_inference(in_folder, capsys):
    call(lenet, "compile", "--pef-name=train")
    run = ("run", "--pef=out/train/train.pef")
    call(lenet, *run, "--num-epochs=2", "--ckpt-dir=ckpt")
    trained = accuracy(capsys.readouterr().out)
    (checkpoint,) = Path("ckpt").iterdir()
    assert checkpoint.name == "88.pt"

    call(lenet, *run, "--test", f"--init-ckpt-path={checkpoint}")
    assert accuracy(capsys.readouterr().out) == trained

    call(lenet, "compile", "--inference", "--pef-name=infer")
    call(
        lenet,
        "run",
        "--inference",
        "--pef=out/infer/infer.pef",
        f"--init-ckpt-path={checkpoint}",
    )
    assert accuracy(capsys.readouterr().out) == trained


@pytest.mark.slow
def test_lenet_goes_on_from_a_checkpoint(in_folder):
    """Weights and momentum are restored: one step after the break is the step without it."""
    call(lenet, "compile", "--pef-name=train")
    run = ("run", "--pef=out/train/train.pef", "--num-epochs=1")
    call(lenet, *run, "--ckpt-dir=first")
    first = torch.load("first/44.pt")
    momenta = [s["momentum_buffer"] for s in first["optimizer"]["state"].values()]
    assert len(momenta) == 10 and all(m.abs().max() > 0 for m in momenta)

    call(lenet, *run, "--lr=0", "--ckpt-dir=idle", "--init-ckpt-path=first/44.pt")
    idle = torch.load("idle/44.pt")
    for name, weight in first["model"].items():
        assert torch.equal(idle["model"][name], weight), name


def test_gpt_text_is_the_standard_librarys():
    text = char_gpt.load_text()
    assert len(text) > 100_000 and int(text.max()) < char_gpt.VOCABULARY
    assert torch.equal(text, char_gpt.load_text())


def test_gpt_learning_rate():
    args = type("Args", (), {"lr": 1.0, "warmup_steps": 10, "num_steps": 110})
    assert char_gpt.learning_rate(args, 0) == pytest.approx(0.1)
    assert char_gpt.learning_rate(args, 9) == pytest.approx(1.0)
    assert char_gpt.learning_rate(args, 60) == pytest.approx(0.55)
    assert char_gpt.learning_rate(args, 110) == pytest.approx(0.1)


@pytest.mark.slow
def test_the_demo_as_a_process(tmp_path):
    """What ``make demo`` does, start to end; the accuracy is the one the README promises."""

    def example(*argv: str) -> str:
        done = finished(
            [sys.executable, str(ROOT / "examples" / "lenet.py"), *argv],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            seconds=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    example("compile", "--pef-name=lenet", "--output-folder=out")
    assert accuracy(example("run", "--pef=out/lenet/lenet.pef")) >= 98.0
    assert "OPT" in example("measure-sections", "--pef=out/lenet/lenet.pef", "-n", "2")
