"""A feed forward network with a residual connection, on handwritten digits.

Compiling and measuring go through ``common_app_driver`` here, as in older scripts.

    python examples/res_ffn.py compile --pef-name=res_ffn
    python examples/res_ffn.py run --pef=out/res_ffn/res_ffn.pef
    python examples/res_ffn.py test --pef=out/res_ffn/res_ffn.pef
    python examples/res_ffn.py measure-performance --pef=out/res_ffn/res_ffn.pef
    python examples/res_ffn.py measure-sections --pef=out/res_ffn/res_ffn.pef
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.common import common_app_driver


class ResFFNLogReg(nn.Module):
    """Three linear layers, the middle one bridged; returns the loss and the logits."""

    def __init__(self, num_features: int, hidden_size: int, num_classes: int) -> None:
        super().__init__()
        self.gemm1 = nn.Linear(num_features, hidden_size)
        self.norm1 = nn.LayerNorm(hidden_size)
        self.tanh1 = nn.Tanh()
        self.gemm2 = nn.Linear(hidden_size, hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size)
        self.sigmoid1 = nn.Sigmoid()
        self.gemm3 = nn.Linear(hidden_size, num_classes)
        self.criterion = nn.CrossEntropyLoss()

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.tanh1(self.norm1(self.gemm1(inputs)))
        bridged = self.norm2(self.gemm2(hidden)) + hidden
        out = self.gemm3(self.sigmoid1(bridged))
        return self.criterion(out, targets), out


def add_common_args(parser: argparse.ArgumentParser) -> None:
    """Options of every sub-command."""
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("-k", "--num-features", type=int, default=64)
    parser.add_argument("-c", "--num-classes", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)


def add_run_args(parser: argparse.ArgumentParser) -> None:
    """Options of ``run``."""
    parser.add_argument("-e", "--num-epochs", type=int, default=15)


def load_data(num_features: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images and labels, then test images and labels.

    Images are flat; zeros fill them up to ``num_features``.
    """
    digits = load_digits()
    data = torch.zeros(len(digits.target), num_features)
    data[:, : digits.data.shape[1]] = torch.tensor(digits.data / 16.0)
    train, test = train_test_split(
        torch.arange(len(data)), test_size=0.2, random_state=0, stratify=digits.target
    )
    labels = torch.tensor(digits.target)
    return data[train], labels[train], data[test], labels[test]


def make_inputs(args: argparse.Namespace) -> tuple[samba.SambaTensor, samba.SambaTensor]:
    """Return inputs of the right shapes, for tracing."""
    image = samba.randn(args.batch_size, args.num_features, name="image", batch_dim=0)
    label = samba.randint(args.num_classes, (args.batch_size,), name="label", batch_dim=0)
    return image, label


def train(args: argparse.Namespace, model: nn.Module) -> None:
    """Train with a learning rate that falls to zero, then score the test images on the CPU."""
    images, labels, test_images, test_labels = load_data(args.num_features)
    steps_per_epoch = len(images) // args.batch_size
    steps = steps_per_epoch * args.num_epochs
    hyperparams = {"momentum": args.momentum, "weight_decay": args.weight_decay}
    step = 0
    for epoch in range(args.num_epochs):
        order = torch.randperm(len(images))
        total = 0.0
        for batch in order[: steps_per_epoch * args.batch_size].split(args.batch_size):
            inputs = (
                samba.from_torch_tensor(images[batch], name="image", batch_dim=0),
                samba.from_torch_tensor(labels[batch], name="label", batch_dim=0),
            )
            hyperparams["lr"] = args.lr * (1 - step / steps)
            loss, _ = samba.session.run(inputs, model.output_tensors, hyperparams)
            total += loss.item()
            step += 1
        print(f"Epoch [{epoch + 1}/{args.num_epochs}], Loss: {total / steps_per_epoch:.4f}")

    samba.session.to_cpu(model)
    with torch.no_grad():
        loss, out = model(test_images, test_labels)
    correct = (samba.to_torch(out).argmax(1) == test_labels).float().mean().item()
    print(f"Test Accuracy: {100 * correct:.2f}  Loss: {samba.to_torch(loss).item():.4f}")


def test(model: nn.Module, inputs: tuple[samba.SambaTensor, ...]) -> None:
    """Compare outputs and gradients of the device with plain PyTorch."""
    gold = model(*inputs)
    gold[0].backward()
    outputs = samba.session.run(
        input_tensors=inputs,
        output_tensors=model.output_tensors,
        section_types=["fwd", "bckwd"],
    )
    for label, ours, theirs in zip(("loss", "out"), outputs, gold, strict=True):
        utils.assert_close(ours, theirs, label, threshold=1e-5, rtol=1e-5)
    for name, param in model.named_parameters():
        utils.assert_close(param.sn_grad, param.grad, f"{name} grad", threshold=1e-5, rtol=1e-5)
    print("Test passed: the device agrees with PyTorch")


def main(argv: list[str]) -> None:
    """Run one sub-command."""
    utils.set_seed(256)
    args = parse_app_args(
        argv=argv,
        dev_mode=True,
        common_parser_fn=add_common_args,
        run_parser_fn=add_run_args,
    )
    inputs = make_inputs(args)
    model = ResFFNLogReg(args.num_features, args.hidden_size, args.num_classes)
    samba.from_torch_model_(model)
    optim = samba.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )

    if args.command in ("run", "test"):
        utils.trace_graph(model, inputs, optim, pef=args.pef, mapping=args.mapping)
        if args.command == "run":
            train(args, model)
        else:
            test(model, inputs)
    else:
        common_app_driver(
            args=args,
            model=model,
            inputs=inputs,
            optim=optim,
            name="res_ffn",
            init_output_grads=not args.inference,
            app_dir=utils.get_file_dir(__file__),
        )


if __name__ == "__main__":
    main(sys.argv[1:])
