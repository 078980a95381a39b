"""Trains one model on several numbers of chips: ``python -m tests.samba.mesh.worker MODEL FOLDER``.

Prints a line of JSON for each of the chips named after them, such as ``4:weight``. The number of
devices that jax makes of the host is in ``XLA_FLAGS``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from bench.nets import GPT, LeNet, ResNet18
from pef_schema.program import Role

STEPS = 10


class Wide(nn.Module):
    """Two linear layers whose weights are most of its memory."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first = nn.Linear(width, 4 * width, bias=False)
        self.second = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(torch.tanh(self.first(x))) ** 2).mean()


def images(count: int, channels: int, size: int) -> list[tuple[str, torch.Tensor]]:
    """Noise, and a class of ten for each image."""
    labels = torch.randint(10, (count,))
    return [("image", torch.randn(count, channels, size, size)), ("label", labels)]


def made(name: str) -> tuple[nn.Module, list[tuple[str, torch.Tensor]], Any]:
    """A model with seeded weights, its inputs, and the rates of its optimizer."""
    torch.manual_seed(0)
    if name == "lenet":
        return LeNet(), images(16, 1, 28), lambda w: samba.optim.SGD(w, lr=0.05, momentum=0.9)
    if name == "resnet18":
        # In float64: in float32 torch's own losses differ by 2e-5 after ten steps where it runs on
        # one thread in place of two, since one bit turns a ReLU off and BatchNorm spreads that.
        data = [(key, t.double() if t.is_floating_point() else t) for key, t in images(8, 3, 32)]
        model = ResNet18(16, 10).double()
        return model, data, lambda w: samba.optim.SGD(w, lr=0.01, momentum=0.9)
    if name == "gpt":
        tokens = torch.randint(256, (8, 33))
        model = GPT(256, 32, 2, 4, 64, tied=False)
        data = [("tokens", tokens[:, :-1].contiguous()), ("targets", tokens[:, 1:].contiguous())]
        # Not AdamW: the gradient of the keys' bias is 0 but for rounding, and it would scale that.
        return model, data, lambda w: samba.optim.SGD(w, lr=0.1, momentum=0.9)
    return Wide(), [("x", torch.randn(8, 512))], lambda w: samba.optim.SGD(w, lr=0.1, momentum=0.9)


def ready(name: str) -> tuple[nn.Module, tuple[samba.SambaTensor, ...], Any]:
    """A model that is converted, its inputs, and its optimizer."""
    model, data, optimizer = made(name)
    inputs = tuple(samba.from_torch_tensor(tensor, name=key) for key, tensor in data)
    samba.from_torch_model_(model)
    return model, inputs, optimizer(model.parameters())


def train(name: str, folder: Path, chips: int, split: str, level: str = "o3") -> dict[str, Any]:
    """Train some steps on some chips.

    Args:
        name: The model.
        folder: Where PEFs are; one is compiled where there is none.
        chips: How many.
        split: What they divide.
        level: Optimization level of the PEF.

    Returns:
        Losses, sums of weights, and the bytes that each chip holds of weights and states.
    """
    model, inputs, optim = ready(name)
    config = {"output_folder": str(folder / level), "optim_level": level}
    config |= {"n_chips": chips, "tensor_parallel": split}
    pef = folder / level / name / f"{name}.pef"
    if not pef.exists():
        samba.session.compile(model, inputs, optim, name=name, config_dict=config)
    utils.trace_graph(model, inputs, optim, pef=str(pef), config_dict=config)
    losses = [_step(inputs, model, by_section=level == "o0") for _ in range(STEPS)]
    samba.session.to_cpu(model, optim)
    device = samba.session.need_loaded("the worker").device
    kept = frozenset({Role.WEIGHT, Role.OPTIMIZER_STATE})
    return {
        "losses": losses,
        "weights": [float(p.detach().double().abs().sum()) for p in model.parameters()],
        "bytes": [_bytes_of_chip(device, chip, kept) for chip in range(chips)],
        "kept": sum(r.nbytes for r in device.program.regions if r.role in kept),
    }


def _bytes_of_chip(device: Any, chip: int, roles: Collection[Role]) -> int:
    """Bytes that a chip of this process holds of regions of some roles, of those with data."""
    wanted = device.placement.chips.devices[chip]
    held = 0
    for region, target in enumerate(device.program.regions):
        array = device.pool.buffers[region]
        if target.role in roles and hasattr(array, "addressable_shards"):
            held += sum(s.data.nbytes for s in array.addressable_shards if s.device == wanted)
    return held


def _step(inputs: Sequence[Any], model: Any, *, by_section: bool) -> float:
    outputs = model.output_tensors
    kinds = (["fwd"], ["bckwd"], ["opt"]) if by_section else (None,)
    found = [
        samba.session.run(input_tensors=inputs, output_tensors=outputs, section_types=kind)
        for kind in kinds
    ]
    return float(samba.to_torch(found[0][0]).detach())


def main() -> None:
    """Train the model as the command line says."""
    name, folder, *ways = sys.argv[1:]
    for way in ways:
        chips, split, *level = way.split(":")
        print(json.dumps(train(name, Path(folder), int(chips), split, *level)), flush=True)


if __name__ == "__main__":
    main()
