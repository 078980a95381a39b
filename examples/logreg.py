"""Logistic regression on handwritten digits: the smallest complete script.

python examples/logreg.py compile --pef-name=logreg
python examples/logreg.py run --pef=out/logreg/logreg.pef
python examples/logreg.py test --pef=out/logreg/logreg.pef
python examples/logreg.py measure-performance --pef=out/logreg/logreg.pef
python examples/logreg.py measure-sections --pef=out/logreg/logreg.pef
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
from sambaflow.samba.utils.pef_utils import get_pefmeta

NUM_FEATURES = 64
NUM_CLASSES = 10


class LogReg(nn.Module):
    """One linear layer and cross entropy; returns the loss and the logits."""

    def __init__(self, num_features: int, num_classes: int, bias: bool) -> None:
        super().__init__()
        self.lin_layer = nn.Linear(num_features, num_classes, bias=bias)
        self.criterion = nn.CrossEntropyLoss()

    def forward(
        self, image: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.lin_layer(image)
        return self.criterion(out, label), out


def add_common_args(parser: argparse.ArgumentParser) -> None:
    """Options of every sub-command."""
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=3e-4)
    parser.add_argument("--bias", action="store_true", help="give the linear layer a bias")


def add_run_args(parser: argparse.ArgumentParser) -> None:
    """Options of ``run``."""
    parser.add_argument("-e", "--num-epochs", type=int, default=10)
    parser.add_argument("--num-steps", type=int, default=0, help="stop after this many steps")


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images and labels, then test images and labels."""
    digits = load_digits()
    images, test_images, labels, test_labels = train_test_split(
        digits.data / 16.0, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    return (
        torch.tensor(images, dtype=torch.float32),
        torch.tensor(labels),
        torch.tensor(test_images, dtype=torch.float32),
        torch.tensor(test_labels),
    )


def make_inputs(args: argparse.Namespace) -> tuple[samba.SambaTensor, samba.SambaTensor]:
    """Return inputs of the right shapes, for tracing."""
    image = samba.randn(args.batch_size, NUM_FEATURES, name="image", batch_dim=0)
    label = samba.randint(NUM_CLASSES, (args.batch_size,), name="label", batch_dim=0)
    return image, label


def train(args: argparse.Namespace, model: nn.Module) -> None:
    """Train on the device, then score the test images on the CPU."""
    images, labels, test_images, test_labels = load_data()
    steps_per_epoch = len(images) // args.batch_size
    hyperparams = {"lr": args.lr, "momentum": args.momentum, "weight_decay": args.weight_decay}
    step = 0
    for epoch in range(args.num_epochs):
        order = torch.randperm(len(images))
        total, i = 0.0, 0
        for i in range(steps_per_epoch):
            batch = order[i * args.batch_size : (i + 1) * args.batch_size]
            image = samba.from_torch_tensor(images[batch], name="image", batch_dim=0)
            label = samba.from_torch_tensor(labels[batch], name="label", batch_dim=0)
            loss, _ = samba.session.run(
                input_tensors=(image, label),
                output_tensors=model.output_tensors,
                hyperparam_dict=hyperparams,
            )
            total += samba.to_torch(loss).item()
            step += 1
            if step == args.num_steps:
                break
        print(f"Epoch [{epoch + 1}/{args.num_epochs}], Loss: {total / (i + 1):.4f}")
        if step == args.num_steps:
            break

    samba.session.to_cpu(model)
    with torch.no_grad():
        loss, out = model(test_images, test_labels)
    correct = (samba.to_torch(out).argmax(1) == test_labels).float().mean().item()
    print(f"Test Accuracy: {100 * correct:.2f}  Loss: {samba.to_torch(loss).item():.4f}")


def test(model: nn.Module, inputs: tuple[samba.SambaTensor, ...]) -> None:
    """Compare outputs and gradients of the device with plain PyTorch."""
    gold_loss, gold_out = model(*inputs)
    gold_loss.backward()
    loss, out = samba.session.run(
        input_tensors=inputs,
        output_tensors=model.output_tensors,
        section_types=["fwd", "bckwd"],
    )
    utils.assert_close(loss, gold_loss, "loss", threshold=1e-5, rtol=1e-5)
    utils.assert_close(out, gold_out, "out", threshold=1e-5, rtol=1e-5)
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
    model = LogReg(NUM_FEATURES, NUM_CLASSES, args.bias)
    samba.from_torch_model_(model)
    optimizer = samba.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )

    if args.command == "compile":
        samba.session.compile(
            model,
            inputs,
            optimizer,
            name="logreg",
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
        )
        return

    utils.trace_graph(model, inputs, optimizer, pef=args.pef, mapping=args.mapping)
    if args.command == "run":
        train(args, model)
    elif args.command == "test":
        test(model, inputs)
    elif args.command == "measure-performance":
        utils.measure_performance(
            model,
            inputs,
            args.batch_size,
            args.n_chips,
            args.inference,
            run_graph_only=args.run_graph_only,
            n_iterations=args.num_iterations,
            json=args.bench_report_json,
            min_duration=args.min_duration,
        )
    elif args.command == "measure-sections":
        utils.measure_sections(
            model,
            inputs,
            num_sections=args.num_sections,
            n_iterations=args.num_iterations,
            batch_size=args.batch_size,
            json=args.bench_report_json,
            min_duration=args.min_duration,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
