"""LeNet in one file with compile, test and run: thresholds per gradient, accuracy report."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.env import use_mock_samba_runtime
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.benchmark_acc import AccuracyReport
from sambaflow.samba.utils.common import common_app_driver
from sambaflow.samba.utils.dataset.mnist import prepare_dataloader

BOUNDS = (0, 100) if use_mock_samba_runtime() else (95, 100)


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)
        self.pool = nn.MaxPool2d(2)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, image: torch.Tensor, label: torch.Tensor):
        x = self.pool(self.conv1(image.reshape(-1, 1, 28, 28)).relu())
        x = self.pool(self.conv2(x).relu()).flatten(1)
        out = self.fc3(self.fc2(self.fc1(x).relu()).relu())
        return self.criterion(out, label), out


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--num-features", type=int, default=784)
    parser.add_argument("-e", "--num-epochs", type=int, default=1)
    parser.add_argument("--data-dir", type=str, default="mnist_data")
    parser.add_argument("--acc-test", action="store_true")


def test(args: argparse.Namespace, model: nn.Module, inputs: tuple, outputs: tuple) -> None:
    samba.session.tracing = False
    gold_loss, gold = model(*inputs)
    gold_loss.backward()
    loss, out = samba.session.run(inputs, outputs, section_types=["fwd", "bckwd"])
    utils.assert_close(loss, gold_loss, "loss", threshold=3e-3, visualize=args.visualize)
    utils.assert_close(out, gold, "out", threshold=3e-3, visualize=args.visualize)
    for name in ("conv1", "conv2", "fc1", "fc2", "fc3"):
        weight = getattr(model, name).weight
        label = f"{name}__weight__grad"
        utils.assert_close(weight.sn_grad, weight.grad, label, 3e-3, visualize=args.visualize)


def run(args: argparse.Namespace, model: nn.Module, outputs: tuple) -> None:
    train_loader, test_loader = prepare_dataloader(vars(args))
    hyper = {"lr": args.lr, "momentum": 0.9, "weight_decay": 0.0}
    for epoch in range(args.num_epochs):
        for step, (image, label) in enumerate(train_loader):
            feed = (
                samba.from_torch_tensor(image, name="image", batch_dim=0),
                samba.from_torch_tensor(label, name="label", batch_dim=0),
            )
            loss, _ = samba.session.run(feed, outputs, hyperparam_dict=hyper)
            print(f"Epoch [{epoch + 1}], Step [{step + 1}], Loss: {samba.to_torch(loss):.4f}")
    samba.session.to_cpu(model)
    right = total = 0
    losses = []
    with torch.no_grad():
        for image, label in test_loader:
            loss, out = model(image, label)
            losses.append(loss.mean().item())
            right += (samba.to_torch(out).argmax(1) == label).sum().item()
            total += label.size(0)
    accuracy = 100.0 * right / total
    print(f"Test Accuracy: {accuracy:.2f} Loss: {sum(losses) / len(losses):.4f}")
    if args.acc_test:
        assert BOUNDS[0] < accuracy <= BOUNDS[1], accuracy
    if args.acc_report_json:
        metrics = {"acc": accuracy, "loss": losses[-1]}
        steps = len(train_loader) * args.num_epochs
        report = AccuracyReport(
            val_metrics=metrics, batch_size=args.batch_size, num_iterations=steps
        )
        report.save(args.acc_report_json)


def main(argv: list[str]) -> None:
    args = parse_app_args(argv, common_parser_fn=add_args)
    utils.set_seed(256)
    image = samba.randn(args.batch_size, 784, name="image", batch_dim=0).bfloat16().float()
    label = samba.randint(10, (args.batch_size,), name="label", batch_dim=0)
    model = LeNet()
    samba.from_torch_(model)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    if args.command in ("test", "run"):
        outputs = utils.trace_graph(
            model, (image, label), optimizer, pef=args.pef, mapping=args.mapping
        )
        if args.command == "test":
            test(args, model, (image, label), outputs)
        else:
            run(args, model, outputs)
    else:
        common_app_driver(args, model, (image, label), optimizer, name="lenet_starter")


if __name__ == "__main__":
    main(sys.argv[1:])
