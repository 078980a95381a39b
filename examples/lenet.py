"""LeNet with dropout on handwritten digits, with checkpoints and inference.

    python examples/lenet.py compile --pef-name=lenet
    python examples/lenet.py run --pef=out/lenet/lenet.pef --ckpt-dir=out/checkpoints
    python examples/lenet.py run --pef=out/lenet/lenet.pef --test \
        --init-ckpt-path=out/checkpoints/2640.pt
    python examples/lenet.py test --pef=out/lenet/lenet.pef
    python examples/lenet.py measure-performance --pef=out/lenet/lenet.pef
    python examples/lenet.py measure-sections --pef=out/lenet/lenet.pef

Replicas, each with its part of the data (mpirun -np 2 or torchrun --nproc-per-node 2 do as well):

    python examples/lenet.py compile --data-parallel --pef-name=lenet_dp
    python -m samba launch -n 2 examples/lenet.py run --data-parallel --reduce-on-rdu \
        --pef=out/lenet_dp/lenet_dp.pef

Inference runs on the device from a PEF without a backward pass:

    python examples/lenet.py compile --inference --pef-name=lenet_inference
    python examples/lenet.py run --inference --pef=out/lenet_inference/lenet_inference.pef \
        --init-ckpt-path=out/checkpoints/2640.pt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.pef_utils import get_pefmeta

NUM_CLASSES = 10


class LeNet(nn.Module):
    """Two convolutions with pooling, three linear layers; returns the loss and the logits."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, NUM_CLASSES)
        self.criterion = nn.CrossEntropyLoss()

    def forward(
        self, image: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.dropout(self.pool(self.conv1(image).relu()))
        x = self.dropout(self.pool(self.conv2(x).relu()))
        x = self.dropout(self.fc1(x.flatten(1)).relu())
        out = self.fc3(self.fc2(x).relu())
        return self.criterion(out, label), out


def add_common_args(parser: argparse.ArgumentParser) -> None:
    """Options of every sub-command."""
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--dropout", type=float, default=0.25, help="rate while training")


def add_run_args(parser: argparse.ArgumentParser) -> None:
    """Options of ``run``."""
    parser.add_argument("-e", "--num-epochs", type=int, default=60)
    parser.add_argument("--ckpt-dir", type=Path, help="write a checkpoint <steps>.pt here")
    parser.add_argument("--init-ckpt-path", type=Path, help="start from this checkpoint")
    parser.add_argument("--test", action="store_true", help="evaluate the checkpoint, do not train")


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images and labels, then test images and labels.

    The 8x8 images are enlarged three times and framed to the 28x28 LeNet expects.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    images = F.pad(F.interpolate(images, scale_factor=3), (2, 2, 2, 2))
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=0, stratify=digits.target
    )
    return images[train], labels[train], images[test], labels[test]


def make_inputs(args: argparse.Namespace) -> tuple[samba.SambaTensor, samba.SambaTensor]:
    """Return inputs of the right shapes, for tracing."""
    image = samba.randn(args.batch_size, 1, 28, 28, name="image", batch_dim=0)
    label = samba.randint(NUM_CLASSES, (args.batch_size,), name="label", batch_dim=0)
    return image, label


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Restore the model and, where there is one, the optimizer."""
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    if optimizer is not None:
        optimizer.load_state_dict(checkpoint["optimizer"])


def save_checkpoint(
    folder: Path, steps: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Path:
    """Write the weights and the optimizer's state, which must be on the CPU by now."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{steps}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def train(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train with a learning rate that falls to zero, then fetch the weights from the device."""
    images, labels, _, _ = load_data()
    dataset = TensorDataset(images, labels)
    # parse_app_args has set up torch.distributed if there are replicas; the sampler deals each its
    # part of the data.
    sampler = DistributedSampler(dataset) if torch.distributed.is_initialized() else None
    loader = DataLoader(
        dataset, args.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True
    )
    steps_per_epoch = len(loader)
    steps = steps_per_epoch * args.num_epochs
    hyperparams = {
        "momentum": args.momentum,
        "weight_decay": args.weight_decay,
        "p": args.dropout,
    }
    step = 0
    for epoch in range(args.num_epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)  # another order in every epoch
        total = 0.0
        for images_of_step, labels_of_step in loader:
            image = samba.from_torch_tensor(images_of_step, name="image", batch_dim=0)
            label = samba.from_torch_tensor(labels_of_step, name="label", batch_dim=0)
            hyperparams["lr"] = args.lr * (1 - step / steps)
            loss, _ = samba.session.run(
                input_tensors=(image, label),
                output_tensors=model.output_tensors,
                hyperparam_dict=hyperparams,
                data_parallel=args.data_parallel,
                reduce_on_rdu=args.reduce_on_rdu,
                data_parallel_mode=args.data_parallel_mode,
            )
            total += samba.to_torch(loss).item()
            step += 1
        print(f"Epoch [{epoch + 1}/{args.num_epochs}], Loss: {total / steps_per_epoch:.4f}")

    samba.session.to_cpu(model, [optimizer])
    if args.ckpt_dir is not None and utils.is_main_process():
        print(f"Checkpoint: {save_checkpoint(args.ckpt_dir, step, model, optimizer)}")


def evaluate_on_cpu(model: nn.Module) -> None:
    """Score the test images with plain PyTorch and the weights that are on the CPU."""
    _, _, images, labels = load_data()
    model.eval()
    with torch.no_grad():
        loss, out = model(images, labels)
    correct = (samba.to_torch(out).argmax(1) == labels).float().mean().item()
    print(f"Test Accuracy: {100 * correct:.2f}  Loss: {samba.to_torch(loss).item():.4f}")


def evaluate_on_device(args: argparse.Namespace, model: nn.Module) -> None:
    """Score the test images on the device; the last batch is filled up with zeros."""
    _, _, images, labels = load_data()
    fill = -len(images) % args.batch_size
    padded = torch.cat([images, torch.zeros(fill, *images.shape[1:])])
    predicted = []
    for batch in padded.split(args.batch_size):
        image = samba.from_torch_tensor(batch, name="image", batch_dim=0)
        unused = torch.zeros(args.batch_size, dtype=torch.int64)
        label = samba.from_torch_tensor(unused, name="label", batch_dim=0)
        _, out = samba.session.run(
            input_tensors=(image, label),
            output_tensors=model.output_tensors,
            section_types=["fwd"],
            train=False,
        )
        predicted.append(samba.to_torch(out).argmax(1))
    correct = (torch.cat(predicted)[: len(labels)] == labels).float().mean().item()
    print(f"Test Accuracy: {100 * correct:.2f}")


def test(model: nn.Module, inputs: tuple[samba.SambaTensor, ...]) -> None:
    """Compare outputs and gradients of the device with plain PyTorch, dropout off."""
    model.eval()
    gold_loss, gold_out = model(*inputs)
    gold_loss.backward()
    loss, out = samba.session.run(
        input_tensors=inputs,
        output_tensors=model.output_tensors,
        section_types=["fwd", "bckwd"],
        train=False,
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
    model = LeNet(args.dropout)
    samba.from_torch_model_(model)
    optimizer = None
    if not args.inference:
        optimizer = samba.optim.SGD(
            model.parameters(),
            lr=args.lr,
            momentum=args.momentum,
            weight_decay=args.weight_decay,
        )

    if args.command == "compile":
        samba.session.compile(
            model,
            inputs,
            optimizer,
            name="lenet",
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
        )
        return

    if args.command == "run" and args.init_ckpt_path is not None:
        load_checkpoint(args.init_ckpt_path, model, optimizer)
    utils.trace_graph(
        model,
        inputs,
        optimizer,
        pef=args.pef,
        mapping=args.mapping,
        data_parallel_mode=args.data_parallel_mode,
    )
    if args.command == "run":
        if args.inference:
            evaluate_on_device(args, model)
        else:
            if not args.test:
                train(args, model, optimizer)
            evaluate_on_cpu(model)
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
            data_parallel=args.data_parallel,
            reduce_on_rdu=args.reduce_on_rdu,
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
            data_parallel=args.data_parallel,
            reduce_on_rdu=args.reduce_on_rdu,
            min_duration=args.min_duration,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
