"""What most tests of a session begin with: a model compiled and put on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

import samba
from samba import utils
from tests.samba.graphs import compiled
from tests.samba.shared_traces import share_trace
from tests.samba.worlds import Scene, World, close

Added = TypeVar("Added")

FINE = World(name="fine", config={"optim_level": "o0"})
"""A section for each operation."""


def load(
    model: nn.Module,
    inputs: Any,
    folder: Path,
    optimizer: Any = None,
    *,
    config: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> tuple[samba.SambaTensor, ...]:
    """Compile a model and load its PEF, whose path is ``samba.session.pef_path`` then.

    Args:
        model: The model, converted or not.
        inputs: What ``compile`` and ``trace_graph`` are given.
        folder: Where the PEF goes.
        optimizer: One optimizer, a list of them or none.
        config: Settings beside the folder and the name of the PEF.
        keywords: Further keywords of ``compile``.

    Returns:
        Handles of the outputs.
    """
    config = {"output_folder": str(folder), "pef_name": "net", **(config or {})}
    pef = samba.session.compile(model, inputs, optimizer, config_dict=config, **keywords)
    return utils.trace_graph(model, inputs, optimizer, pef=pef, config_dict=config)


def reload_graphs(add: Callable[[], Added], folder: Path) -> Added:
    """Compile graphs, and load their PEF in a session that has them again, as another process does.

    Args:
        add: Traces and adds the graphs.
        folder: Where the PEF goes.

    Returns:
        What ``add`` has returned the second time.
    """
    add()
    pef = compiled(folder)
    samba.session.reset()
    added = add()
    samba.session.init_multigraph_runtime(pef)
    return added


def loaded(world: World, folder: Path, **config: Any) -> Scene:
    """A world on the device, with a PEF of its own in a folder.

    Args:
        world: The world. One that several tests load is compiled once by ``pefs.loaded``.
        folder: Where the PEF goes.
        config: Settings of the compile beside those of the world.
    """
    scene = world.build()
    scene.compile(folder, **config)
    scene.trace()
    return scene


def plain(scene: Scene) -> Scene:
    """The scene on the device with a model that was not converted.

    Args:
        scene: A scene with a PEF, not yet on the device.
    """
    scene.model = share_trace(copy.deepcopy(scene.host))
    scene.optimizer = scene.world.optimizer(scene.model)
    scene.trace()
    return scene


def assert_same_gradients(scene: Scene) -> None:
    """Gradients of all weights are the same on device and host."""
    for path, weight in scene.host.named_parameters():
        close(scene.model.get_parameter(path).sn_grad, weight.grad, path)


def assert_gradients(scene: Scene, *seeds: torch.Tensor | None) -> None:
    """Gradients of weights on the device are torch's for these gradients of the outputs.

    Args:
        scene: The scene, after a backward pass.
        seeds: The gradient of each output; None for one that starts no backward pass.
    """
    scene.host.zero_grad()
    outputs = scene.host(**scene.tensors)
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if s is not None]
    torch.autograd.backward([o for o, _ in pairs], [s for _, s in pairs])
    assert_same_gradients(scene)


def told_of(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """What the project told of a deviation, by the deviation's name."""
    return [text for text in caplog.messages if text.endswith(f"[deviation: {name}]")]
