"""Convolutional network fed by a SambaLoader; every command but run compiles."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sambaflow.samba as samba
import sambaflow.samba.optim as optim
import sambaflow.samba.utils as utils
from sambaflow.samba.sambaloader import SambaLoader
from sambaflow.samba.utils.argparser import parse_app_args


class ConvNet(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layer1 = self.block(1, width)
        self.layer2 = self.block(width, 2 * width)
        self.drop = nn.Dropout()
        self.fc1 = nn.Linear(2 * width * 49, hidden)
        self.fc2 = nn.Linear(hidden, 10)
        self.criterion = nn.CrossEntropyLoss()

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2, 2)
        )

    def forward(self, image: torch.Tensor, label: torch.Tensor):
        x = self.layer2(self.layer1(image))
        out = self.fc2(self.fc1(self.drop(x.reshape(x.size(0), -1))))
        return self.criterion(out, label), out


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-bs", type=int, default=100)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.001)


def images(count: int, seed: int) -> TensorDataset:
    """A bright bar whose place is the class."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(10, (count,), generator=generator)
    image = 0.2 * torch.randn(count, 1, 28, 28, generator=generator)
    for row, number in enumerate(label.tolist()):
        image[row, 0, 2 * number + 3 : 2 * number + 6] += 1
    return TensorDataset(image, label)


def main(argv: list[str]) -> None:
    args = parse_app_args(argv=argv, common_parser_fn=add_args)
    utils.set_seed(0)
    model = ConvNet(args.width, args.hidden)
    samba.from_torch_model_(model)
    optimizer = optim.AdamW(model.parameters(), lr=args.learning_rate)
    inputs = (
        samba.randn(args.bs, 1, 28, 28, name="image", batch_dim=0),
        samba.randint(10, (args.bs,), name="label", batch_dim=0),
    )
    if args.command != "run":
        samba.session.compile(
            model=model,
            inputs=inputs,
            optimizers=optimizer,
            name="convnet",
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
        )
        return
    utils.trace_graph(model, inputs, optimizer, pef=args.pef, mapping=args.mapping)
    loader = SambaLoader(
        DataLoader(images(8 * args.bs, seed=1), batch_size=args.bs, shuffle=True),
        ["image", "label"],
    )
    for epoch in range(args.num_epochs):
        seen = 0
        for step, (sn_images, sn_labels) in enumerate(loader):
            loss, _ = samba.session.run(
                [sn_images, sn_labels],
                model.output_tensors,
                hyperparam_dict={"lr": args.learning_rate},
            )
            seen += sn_labels.size(0)
            if step + 1 == len(loader):
                print(f"Epoch {epoch + 1}, samples {seen}, Loss: {samba.to_torch(loss):.4f}")
    right = total = 0
    test_loader = DataLoader(images(4 * args.bs, seed=2), batch_size=args.bs)
    for sn_images, sn_labels in SambaLoader(test_loader, ["image", "label"]):
        _, outputs = samba.session.run(
            [sn_images, sn_labels],
            model.output_tensors,
            hyperparam_dict={"p": 0.0},
            section_types=["fwd"],
        )
        _, predicted = torch.max(samba.to_torch(outputs).data, 1)
        right += (predicted == sn_labels).sum().item()
        total += sn_labels.size(0)
    print(f"Test Accuracy: {100 * right / total:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
