"""The training of a Hugging Face model: schedule, evaluation, checkpoint, resume, and the commands.

transformers takes seconds to import, so only these tests do.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import sambaflow.samba as samba
from tests.examples.test_commands import accuracy, call

SMALL = ("--layers=1", "--heads=2", "--width=8", "-b=8", "--lr=0.01")
SHORT = ("--lines=32", "--num-epochs=2", "--warmup-steps=2")
"""Eight steps, of which two warm up."""
RATES = [0.0, 0.005, *(0.01 * left / 6 for left in range(6, 0, -1))]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    from examples import hf_gpt2

    monkeypatch.setattr(hf_gpt2, "TEST_LINES", 8)
    monkeypatch.chdir(tmp_path)
    call(hf_gpt2, "compile", "--pef-name=x", *SMALL)
    return hf_gpt2


def run(example: ModuleType, *more: str) -> None:
    call(example, "run", "--pef=out/x/x.pef", *SMALL, *SHORT, *more)


@pytest.mark.slow
def test_it_trains_evaluates_and_writes_a_checkpoint(example, capsys):
    samba.session.follow("log", tensorboard=False)
    run(example, "--checkpoint=last.pt", "--stop-after=1")
    samba.session.stop_following()
    printed = capsys.readouterr().out
    assert re.search(rf"Epoch \[1/2\], Loss: \d\.\d{{4}}, next rate {RATES[4]:.6f}\n", printed)
    assert 0 <= accuracy(printed) <= 100

    rows = [json.loads(line) for line in Path("log/steps.jsonl").read_text().splitlines()]
    steps = [row["hyperparameters"] for row in rows if row["kind"] == "train"]
    for group in ("adamw0", "adamw0_group1"):
        assert [held[f"{group}__lr"] for held in steps] == pytest.approx(RATES[:4])
    assert rows[-1]["kind"] == "eval"
    assert torch.load("last.pt", weights_only=True)["values"] == {"epochs": 1}


@pytest.mark.slow
def test_after_a_break_the_weights_are_those_without_it(example, monkeypatch, capsys):
    """With dropout: the checkpoint has the device's random stream, too."""
    monkeypatch.setattr(example, "TEST_LINES", 12)  # a whole batch, and a smaller one
    run(example, "--checkpoint=whole.pt")
    wanted = accuracy(capsys.readouterr().out.rpartition("Epoch")[2])
    run(example, "--checkpoint=parts.pt", "--stop-after=1")
    run(example, "--checkpoint=parts.pt", "--resume", "--save-pretrained=saved")
    printed = capsys.readouterr().out
    assert re.findall(r"Epoch \[(\d)/2\]", printed) == ["1", "2"]
    assert accuracy(printed.rpartition("Epoch")[2]) == wanted
    whole, parts = (torch.load(f"{n}.pt", weights_only=True)["model"] for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    saved = example.GPT2LMHeadModel.from_pretrained("saved").state_dict()
    assert all(torch.equal(saved[name], parts[name]) for name in saved)


@pytest.mark.slow
def test_the_other_commands(example, capsys):
    call(example, "test", "--pef=out/x/x.pef", *SMALL)
    assert "Test passed" in capsys.readouterr().out
    call(example, "measure-performance", "--pef=out/x/x.pef", "-n", "3", *SMALL)
    assert "throughput" in capsys.readouterr().out
    call(example, "measure-sections", "--pef=out/x/x.pef", "-n", "2", *SMALL)
    printed = capsys.readouterr().out
    assert all(kind in printed for kind in ("FWD", "BCKWD", "OPT"))


@pytest.mark.slow
def test_it_learns_to_sort(monkeypatch, tmp_path, capsys):
    from examples import hf_gpt2

    monkeypatch.chdir(tmp_path)
    call(hf_gpt2, "compile", "--pef-name=x")
    call(hf_gpt2, "run", "--pef=out/x/x.pef", "--num-epochs=4")
    assert accuracy(capsys.readouterr().out.rpartition("Epoch")[2]) > 70
    lines = hf_gpt2.make_lines(3, seed=5)
    again = hf_gpt2.make_lines(3, seed=5)
    assert all(torch.equal(lines[name], again[name]) for name in lines)
