"""Small models with their inputs and optimizers, compiled once and loaded many times."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from tests.samba.shared_traces import share_trace

Tensors = dict[str, torch.Tensor]
MakeOptimizer = Callable[[nn.Module], Any]


class Mlp(nn.Module):
    """Two linear layers; returns the loss and the logits."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.second(self.drop(self.first(x).tanh()))
        return F.cross_entropy(out, y), out


class Together(nn.Module):
    """Several models of the same inputs as one, so that one compile tries them all.

    Args:
        parts: The models by name; each returns its loss, or a tuple that begins with it.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(dict(parts))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [part(x, y) for part in self.parts.values()]
        results = [result if isinstance(result, tuple) else (result,) for result in found]
        losses = torch.stack([result[0] for result in results])
        return losses.sum(), losses, *[other for result in results for other in result[1:]]


def features(batch: int = 5, seed: int = 1) -> Tensors:
    """Inputs of :class:`Mlp`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(batch, 4, generator=generator),
        "y": torch.randint(3, (batch,), generator=generator),
    }


def sgd(lr: float = 0.1, momentum: float = 0.9, **more: Any) -> MakeOptimizer:
    """Make an optimizer maker."""
    return lambda model: samba.optim.SGD(model.parameters(), lr=lr, momentum=momentum, **more)


@dataclass(frozen=True, kw_only=True)
class World:
    """What a PEF is compiled from.

    Args:
        name: Unique; the name of the PEF.
        model: Makes the model.
        inputs: Makes its inputs by name.
        optimizer: Makes the optimizers, the same for host and device.
        config: ``config_dict`` of the compile.
        compile: Further keywords of the compile.
    """

    name: str
    model: Callable[[], nn.Module] = Mlp
    inputs: Callable[[], Tensors] = features
    optimizer: MakeOptimizer = field(default_factory=sgd)
    config: Mapping[str, Any] = field(default_factory=dict)
    compile: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Scene:
        """A model converted for the device and its twin on the host, not compiled yet."""
        torch.manual_seed(0)
        host = self.model()
        model = samba.from_torch_model_(copy.deepcopy(host))
        share_trace(model)
        tensors = self.inputs()
        return Scene(
            world=self,
            model=model,
            host=host,
            tensors=tensors,
            inputs=named(tensors),
            optimizer=self.optimizer(model),
            host_optimizer=self.optimizer(host),
        )


@dataclass(kw_only=True)
class Scene:
    """One world, set up: a model for the device and its twin for plain torch."""

    world: World
    model: nn.Module
    host: nn.Module
    tensors: Tensors
    inputs: tuple[samba.SambaTensor, ...]
    optimizer: Any
    host_optimizer: Any
    pef: str = ""

    def compile(self, folder: Path, **config: Any) -> str:
        """Compile to ``folder``; returns the path of the PEF."""
        config = {
            "output_folder": str(folder),
            "pef_name": self.world.name,
            **self.world.config,
            **config,
        }
        self.pef = samba.session.compile(
            self.model, self.inputs, self.optimizer, config_dict=config, **self.world.compile
        )
        return self.pef

    def trace(self, **keywords: Any) -> tuple[samba.SambaTensor, ...]:
        """Put the model on the device."""
        keywords = {"pef": self.pef, "config_dict": {}, **keywords}
        return utils.trace_graph(self.model, self.inputs, self.optimizer, **keywords)

    def run(self, *args: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        """``session.run`` with the scene's inputs and all outputs, as plain tensors."""
        inputs = args[0] if args else self.inputs
        outputs = keywords.pop("output_tensors", self.model.output_tensors)
        return tuple(map(samba.to_torch, samba.session.run(inputs, outputs, **keywords)))

    def host_step(self, tensors: Tensors | None = None) -> tuple[torch.Tensor, ...]:
        """A training step in plain torch; returns what ``forward`` does."""
        optimizers = self.host_optimizer
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
        results = self.host(**(tensors or self.tensors))
        results[0].backward()
        for optimizer in optimizers:
            optimizer.step()
        return tuple(result.detach() for result in results)

    def weights(self) -> Tensors:
        """Weights on the device by path."""
        return {path: p.sn_data for path, p in self.model.named_parameters()}

    def assert_follows(self) -> None:
        """Device and host have the same weights."""
        for path, weight in self.host.named_parameters():
            close(self.weights()[path], weight.detach(), path)


def close(ours: torch.Tensor, theirs: torch.Tensor, what: str = "") -> None:
    """Equal but for the rounding of a few float32 operations.

    Small entries may be differences of numbers as large as the largest, with their rounding: two
    ulps of it, on either side.
    """
    largest = 1.0
    if theirs.is_floating_point():
        finite = theirs.detach()[theirs.isfinite()]
        largest = float(finite.abs().clamp(min=1.0).max()) if finite.numel() else 1.0
    torch.testing.assert_close(
        samba.to_torch(ours),
        theirs,
        rtol=2e-6,
        atol=2e-7 * largest,
        msg=lambda text: f"{what}: {text}",
    )


def told(caplog: Any) -> list[str]:
    """What the project logged, without names of deviations; torch and jax log as well."""
    return [
        record.getMessage().split(" [deviation: ")[0]
        for record in caplog.records
        if record.name == "samba"
    ]


def deviations(caplog: Any) -> list[str]:
    """Names of the deviations that the project logged."""
    return re.findall(r"\[deviation: ([\w-]+)\]$", caplog.text, re.M)


def named(tensors: Mapping[str, torch.Tensor]) -> tuple[samba.SambaTensor, ...]:
    """Tensors with their keys as names; their memory is shared."""
    return tuple(samba.from_torch_tensor(t, name=name) for name, t in tensors.items())


def other_batch(seed: int = 7, batch: int = 5) -> Tensors:
    """Other inputs of :class:`Mlp`."""
    return features(batch, seed)


@contextmanager
def sharing_executables() -> Iterator[None]:
    """Inside, devices that run the same program share what XLA made of it.

    A plan follows from program, buckets, steps and variant alone. Devices count it all the same.
    """
    from emulator import device

    compile_plan, plans = device.compile_plan, {}

    def shared(program, memory, steps, variant, where, watched, **how):
        key = (
            program,
            memory.buckets != (),
            steps,
            variant,
            where.chips,
            repr(watched),
            how["whole"],
        )
        if key not in plans:
            plans[key] = compile_plan(program, memory, steps, variant, where, watched, **how)
        return plans[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "compile_plan", shared)
        yield


MLP = World(name="mlp")
DROPOUT = World(name="dropout", model=functools.partial(Mlp, 0.5))
INFERENCE = World(name="inference", config={"inference": True}, optimizer=lambda model: None)
NO_OPTIMIZER = World(name="no_optimizer", optimizer=lambda model: None)


class Pefs:
    """Compiles each world once.

    Args:
        folder: Where the PEFs go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[str, str] = {}

    def __call__(self, world: World) -> str:
        """Path of the PEF of a world."""
        if world.name not in self._paths:
            self._paths[world.name] = world.build().compile(self._folder)
        return self._paths[world.name]

    def scene(self, world: World) -> Scene:
        """A world with its PEF, not yet on the device."""
        pef = self(world)
        scene = world.build()
        scene.pef = pef
        return scene

    def loaded(self, world: World, **keywords: Any) -> Scene:
        """A world on the device."""
        scene = self.scene(world)
        scene.trace(**keywords)
        return scene
