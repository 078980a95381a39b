"""The models of the bench, small, as programs for inference and for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

import samba
from bench import nets
from tests.samba.shared_traces import share_trace


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model with its inputs.

    Args:
        make: Makes it; always with the same weights.
        inputs: Its inputs by name.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: dict[str, torch.Tensor]

    @cached_property
    def net(self) -> nn.Module:
        """The model, in evaluation mode."""
        torch.manual_seed(3)
        return self.make().eval()

    def compiled(self, folder: Path, *, inference: bool, **more: object) -> str:
        """Compile it at ``o0``, with more settings if given; returns the path of its PEF."""
        samba.session.reset()
        torch.manual_seed(3)
        net = self.make()
        if inference:
            net.eval()
        inputs = tuple(
            samba.from_torch_tensor(tensor, name=name) for name, tensor in self.inputs.items()
        )
        share_trace(samba.from_torch_model_(net))
        optimizer = None if inference else samba.optim.SGD(net.parameters(), lr=0.1)
        name = f"{self.name}_{'infers' if inference else 'trains'}"
        config = {"output_folder": str(folder), "optim_level": "o0", **more}
        return str(
            samba.session.compile(
                net, inputs, optimizer, name=name, inference=inference, config_dict=config
            )
        )


def _resnet() -> nn.Module:
    """ResNet-18 up to its third block, the first one that halves the image."""
    net = nets.ResNet18(8, 10)
    net.blocks, net.head = net.blocks[:3], nn.Linear(16, 10)
    return net


def _models(*, deep: bool) -> dict[str, Model]:
    drawn = torch.Generator().manual_seed(5)
    tokens = torch.randint(64, (2, 17), generator=drawn)
    images = torch.randn(2, 3, 32, 32, generator=drawn)
    digits = torch.randn(3, 1, 28, 28, generator=drawn)
    labels = torch.tensor([1, 0, 9])
    return {
        "lenet": Model(
            name="lenet",
            make=nets.LeNet,
            inputs={"image": digits, "label": labels},
        ),
        "resnet18": Model(
            name="resnet18",
            make=(lambda: nets.ResNet18(8, 10)) if deep else _resnet,
            inputs={"image": images, "label": torch.tensor([3, 7])},
        ),
        "gpt": Model(
            name="gpt",
            make=lambda: nets.GPT(64, 16, 2 if deep else 1, 2, 32, tied=False),
            inputs={"token_ids": tokens[:, :-1].clone(), "targets": tokens[:, 1:].clone()},
        ),
    }


MODELS = _models(deep=False)
DEEP_MODELS = _models(deep=True)
"""The same with all of their layers, where it matters how long they take."""
