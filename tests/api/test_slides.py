"""The modelling slides from end to end: a script's parts in one process, on a real device."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.sambaloader import SambaLoader
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.common import common_app_driver
from tests.api.covers import covers


class Classifier(nn.Module):
    """Two layers and a residual, with a loss in ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.gemm1 = nn.Linear(6, 8)
        self.norm1 = nn.LayerNorm(8)
        self.gemm2 = nn.Linear(8, 8)
        self.gemm3 = nn.Linear(8, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor):
        out = torch.tanh(self.norm1(self.gemm1(inputs)))
        out = self.gemm3(torch.sigmoid(self.gemm2(out) + out))
        return self.criterion(out, targets), out


def parts(args: Namespace, lr: float = 0.5):
    """Model, inputs and optimizer as the sample code makes them."""
    samba.set_seed(1)
    image = samba.randn(args.batch_size, 6, name="image", batch_dim=0)
    label = samba.randint(3, (args.batch_size,), name="label", batch_dim=0)
    model = Classifier()
    samba.from_torch_model_(model)
    optim = None
    if not args.inference:
        optim = samba.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    return model, (image, label), optim


@pytest.fixture(scope="module")
def pef(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    args = parse_app_args(["compile", "-b=4", "--pef-name=net", f"--output-folder={folder}"])
    model, inputs, optim = parts(args)
    common_app_driver(
        args=args,
        model=model,
        inputs=inputs,
        optim=optim,
        name=model.__class__.__name__,
        init_output_grads=not args.inference,
        app_dir=utils.get_file_dir(__file__),
    )
    return folder / "net" / "net.pef"


def traced(pef: Path, *more: str, lr: float = 0.5):
    args = parse_app_args(["run", "-b=4", "-mb=4", f"--pef={pef}", *more])
    model, inputs, optim = parts(args, lr)
    outputs = utils.trace_graph(model, inputs, optim, pef=args.pef, mapping=args.mapping)
    return model, inputs, outputs


@covers(
    "samba.utils.argparser.parse_app_args",
    ".parse_app_args(command, batch_size, microbatch_size, inference, pef, argv)",
)
@pytest.mark.parametrize("command", ["compile", "run"])
def test_the_two_command_lines(command):
    args = parse_app_args([command, "-b=64", "-mb=4", "--inference", "-p", "app.pef"])
    assert (args.command, args.batch_size, args.microbatch_size) == (command, 64, 4)
    assert (args.inference, args.pef) == (True, "app.pef")
    args = parse_app_args([command, "--batch-size", "8", "--pef=p"])
    assert (args.batch_size, args.microbatch_size, args.inference) == (8, None, False)


@covers(
    "samba.utils.common.common_app_driver",
    ".common_app_driver(args, model, inputs, optim, name, app_dir)",
    "samba.utils.get_file_dir",
    "samba.from_torch_model_",
    ".randn",
    ".randint",
    ".from_torch_model_(model)",
    "samba.optim.SGD",
    ".SGD(lr, momentum, weight_decay)",
)
def test_the_training_loop(pef):
    assert utils.get_file_dir(__file__) == str(Path(__file__).parent)
    assert pef.with_suffix(".pef.log").read_text().startswith("Classifier: ")
    model, (image, label), outputs = traced(pef)
    host = Classifier()
    host.load_state_dict({k: v.torch().clone() for k, v in model.state_dict().items()})
    optimizer = torch.optim.SGD(host.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        loss, out = samba.session.run(
            input_tensors=(image, label),
            output_tensors=outputs,
            section_types=["fwd", "bckwd", "opt"],
        )
        optimizer.zero_grad()
        gold_loss, gold = host(image.torch(), label.torch())
        gold_loss.backward()
        optimizer.step()
        utils.assert_close(loss, gold_loss, "loss", threshold=1e-5)
        utils.assert_close(out, gold, "out", threshold=1e-5)
    utils.assert_close(model.gemm1.weight.sn_grad, host.gemm1.weight.grad, "grad", threshold=1e-5)
    samba.session.to_cpu(model)
    for ours, theirs in zip(model.parameters(), host.parameters(), strict=True):
        utils.assert_close(ours, theirs, "weights", threshold=1e-5)


@covers(
    "samba.sambaloader.SambaLoader", ".SambaLoader(names)", "samba.session.run(hyperparam_dict[lr])"
)
def test_a_loader_feeds_the_loop(pef):
    model, _, outputs = traced(pef, lr=0.0)
    torch.manual_seed(0)
    x = torch.randn(8, 6)
    data = TensorDataset(x, x[:, :3].argmax(dim=1))
    samba.session.enable_pinned_memory()
    loader = SambaLoader(DataLoader(data, batch_size=4), ["image", "label"])
    losses = []
    for _ in range(40):
        total = 0.0
        for image, label in loader:
            assert (image.sn_name, label.sn_name) == ("image", "label")
            loss, _ = samba.session.run(
                [image, label], outputs, hyperparam_dict={"lr": 0.2, "weight_decay": 0.0}
            )
            total += loss.item()
        losses.append(total / len(loader))
    assert losses[-1] < 0.1 * losses[0], losses[-1]
    samba.session.to_cpu(model)
    loss, out = model(x, data.tensors[1])
    assert (out.argmax(dim=1) == data.tensors[1]).all()


@covers(
    "samba.utils.measure_performance",
    ".measure_performance(batch_size, run_graph_only, n_iterations)",
    ".measure_sections",
    ".measure_sections(num_sections, n_iterations)",
)
def test_measuring_from_the_command_line(pef, tmp_path, capsys):
    report = tmp_path / "report.json"
    argv = [f"--pef={pef}", "-b=4", "-n=3", f"--bench-report-json={report}"]
    args = parse_app_args(["measure-performance", *argv, "--run-graph-only"])
    common_app_driver(args, *parts(args))
    found = json.loads(report.read_text())
    assert (found["iterations"], found["batch_size"], found["run_graph_only"]) == (3, 4, True)
    speed = found["throughput_samples_per_s"] * found["average_latency_s"]
    assert speed == pytest.approx(4)
    assert "graph_only_throughput: " in capsys.readouterr().out
    args = parse_app_args(["measure-sections", *argv, "--num-sections=2"])
    common_app_driver(args, *parts(args))
    rows = json.loads(report.read_text())
    rows = rows["sections"] if isinstance(rows, dict) else rows
    assert [row["calls"] for row in rows] == [3, 3]


@covers(
    "samba.rand",
    ".randn",
    ".randint",
    ".rand(name, batch_dim)",
    ".randn(name, batch_dim)",
    ".randint(name, batch_dim)",
    "samba.SambaTensor.batch_dim",
)
def test_dummy_inputs():
    uniform = samba.rand(1000, name="x", batch_dim=0)
    normal = samba.randn(1000, name="x", batch_dim=0)
    whole = samba.randint(10, (1000,), name="x", batch_dim=0)
    assert 0 <= uniform.min() < 0.1 and 0.9 < uniform.max() < 1
    assert abs(normal.mean()) < 0.2 and 0.8 < normal.std() < 1.2
    assert sorted(set(whole.tolist())) == list(range(10))
    for tensor in (uniform, normal, whole):
        assert (tensor.sn_name, tensor.batch_dim, tensor.shape) == ("x", 0, (1000,))


@covers("samba.from_torch_model")
def test_the_conversion_without_underscore_is_in_place_too():
    model = nn.Linear(2, 2)
    samba.from_torch_model(model)
    assert type(model.weight) is samba.SambaParameter
    assert model.weight.sn_name == "linear__weight"
