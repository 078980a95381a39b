"""Residual network whose every command goes through the driver before the app's own part."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

import sambaflow
import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.common import common_app_driver
from sambaflow.samba.utils.dataset import mnist


class ResNetwork(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.gemm1 = nn.Linear(features, hidden)
        self.gemm2 = nn.Linear(hidden, hidden)
        self.gemm3 = nn.Linear(hidden, classes)
        self.norm1 = nn.LayerNorm(hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor):
        first = torch.tanh(self.norm1(self.gemm1(inputs)))
        out = torch.sigmoid(self.norm2(self.gemm2(first)) + first)
        out = self.gemm3(out)
        return self.criterion(out, targets), out


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--num-classes", type=int, default=10)
    parser.add_argument("-k", "--num-features", type=int, default=784)
    parser.add_argument("-e", "--num-epochs", type=int, default=2)
    parser.add_argument("-n", "--num-iterations", type=int, default=5)
    parser.add_argument("--hidden-size", type=int, default=128)


def add_run_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-e", "--num-epochs", type=int, default=2)
    parser.add_argument("--data-dir", type=str, default="mnist_data")


def main(argv: list[str]) -> None:
    args = parse_app_args(argv, common_parser_fn=add_args, run_parser_fn=add_run_args)
    utils.set_seed(7)
    inputs = (
        samba.randn(args.batch_size, args.num_features, name="image", batch_dim=0),
        samba.randint(args.num_classes, (args.batch_size,), name="label", batch_dim=0),
    )
    model = ResNetwork(args.num_features, args.hidden_size, args.num_classes)
    samba.from_torch_model_(model)
    optim = sambaflow.samba.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.01)
    common_app_driver(args, model, inputs, optim, name="res_ffn_starter")
    if args.command == "test":
        outputs = utils.trace_graph(model, inputs, optim, pef=args.pef)
        gold_loss, gold = model(*inputs)
        gold_loss.backward()
        loss, out = samba.session.run(inputs, outputs, section_types=["FWD", "BCKWD"])
        utils.assert_close(gold_loss, loss, "loss", 2e-2)
        utils.assert_close(gold, out, "out", 2e-2)
        for layer in (model.gemm1, model.gemm2, model.gemm3):
            utils.assert_close(layer.weight.grad, layer.weight.sn_grad, "grad", threshold=3e-3)
        print("test passed")
    elif args.command == "run":
        utils.trace_graph(model, inputs, optim, pef=args.pef)
        train_loader, test_loader = mnist.prepare_dataloader(vars(args))
        hyper = {"lr": 0.1, "weight_decay": 0.0}
        for _ in range(args.num_epochs):
            for image, label in train_loader:
                samba.session.run(
                    (
                        samba.from_torch_tensor(image, name="image"),
                        samba.from_torch_tensor(label, name="label"),
                    ),
                    model.output_tensors,
                    hyperparam_dict=hyper,
                    data_parallel=args.data_parallel,
                    reduce_on_rdu=args.reduce_on_rdu,
                )
        right = total = 0
        for image, label in test_loader:
            feed = [
                samba.from_torch_tensor(image, name="image"),
                samba.from_torch_tensor(label, name="label"),
            ]
            _, out = samba.session.run(feed, model.output_tensors, section_types=["fwd"])
            _, predicted = torch.max(samba.to_torch(out).data, 1)
            right, total = right + (predicted == label).sum().item(), total + label.size(0)
        print(f"Test Accuracy: {100.0 * right / total:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
