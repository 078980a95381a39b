"""Applications in the shape of the vendor's starters, and in others, through all their commands."""

from __future__ import annotations

import re
import sys

import pytest

from tests.applications import (
    adversarial,
    convnet_loader,
    lenet_starter,
    recommender,
    regression,
    res_ffn_starter,
)
from tests.applications.mnist_files import write_mnist


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    write_mnist(folder, train=640, test=100)
    return folder


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
    """Call an app's ``main`` as a process of its own would: from a folder, with its arguments."""
    import samba

    monkeypatch.chdir(tmp_path)

    def call(app, *arguments: str) -> str:
        samba.session.reset()
        monkeypatch.setattr(sys, "argv", [app.__file__, *arguments])
        app.main(list(arguments))
        return capsys.readouterr().out

    return call


def accuracy(text: str) -> float:
    found = re.search(r"Test Accuracy: ([\d.]+)", text)
    assert found, text
    return float(found[1])


def test_lenet_starter(call, data, tmp_path):
    app, pef = lenet_starter, "--pef=out/lenet/lenet.pef"
    assert "lenet.pef created" in call(app, "compile", "-b=20", "--pef-name=lenet")
    call(app, "test", "-b=20", pef)
    report = tmp_path / "acc.json"
    said = call(
        app, "run", "-b=20", pef, f"--data-dir={data}", f"--acc-report-json={report}", "--acc-test",
        "-e=2",
    )  # fmt: skip
    assert "Epoch [2], Step [32], Loss: " in said
    assert accuracy(said) > 95
    assert f"{accuracy(said):.2f}"[:4] in report.read_text()
    assert "e2e_throughput" in call(app, "measure-performance", "-b=20", pef, "-n=2")


@pytest.mark.slow
def test_residual_starter(call, data):
    app, pef = res_ffn_starter, "--pef=out/res/res.pef"
    assert "res.pef created" in call(app, "compile", "-b=20", "--pef-name=res")
    assert call(app, "test", "-b=20", pef).endswith("test passed\n")
    assert accuracy(call(app, "run", "-b=20", pef, f"--data-dir={data}", "-e=3")) > 95
    assert "e2e_throughput" in call(app, "measure-performance", "-b=20", pef, "-n=2")
    assert "BCKWD" in call(app, "measure-sections", "-b=20", pef, "-n=2")


@pytest.mark.slow
def test_convolutional_network_with_a_loader(call):
    small = ("-bs", "25", "--width=2", "--hidden=16", "--learning-rate=0.02", "--num-epochs=8")
    said = call(convnet_loader, "compile", *small, "--pef-name=convnet")
    assert "convnet.pef created" in said
    said = call(convnet_loader, "run", *small, "--pef=out/convnet/convnet.pef")
    assert "Epoch 8, samples 200, Loss: " in said
    assert accuracy(said) > 90


@pytest.mark.parametrize(
    ("app", "words"),
    [
        pytest.param(recommender, "4 outputs as torch has them", marks=pytest.mark.slow),
        (regression, "sections ['BCKWD', 'FWD', 'GRADNORM', 'OPT'] as torch has them"),
        (adversarial, "both graphs as torch has them"),
    ],
    ids=["recommender", "regression", "adversarial"],
)
def test_applications_that_compare_with_torch(app, words, call):
    assert "app.pef created" in call(app, "compile", "-b=8", "--pef-name=app")
    assert call(app, "run", "-b=8", "--pef=out/app/app.pef").endswith(f"{words}\n")
