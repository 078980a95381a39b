"""A model in device memory, as Bagua sees it: its tensors are regions, found by name each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from pef_schema.program import OptimizerKind, Program, Role
from samba.distributed.bagua.algorithms.base import Algorithm, Moments, TrainedModel
from samba.distributed.bagua.world import World
from samba.distributed.errors import NotDataParallel
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.bagua_handle import Closures
from samba.tensor.views import view_as_numpy, view_as_torch

if TYPE_CHECKING:
    # They load jax, which a torch training loop does not need.
    from emulator.device import Device
    from samba.distributed.replicas import Replicas


class LoadedProgram(Protocol):
    """A program on a device. That of one graph has its ``model``, ``traced`` and ``optimizers``."""

    program: Program
    device: Device
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class RegionGetter:
    """Getter closure: a copy of a region, as it is when the run that writes it is done.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.
    """

    copies: ClassVar[bool] = True
    device: Device
    name: str

    def __call__(self, proxy: Any) -> torch.Tensor:
        return view_as_torch(self.device.read(self.device.region_of(self.name)))


@dataclass(frozen=True, slots=True)
class RegionSetter:
    """Setter closure: copies values to a region.

    A gradient in a bucket is written in place: between the backward pass and the optimizer nobody
    else uses it. Any other region gets new memory, so a run that still reads the old one may.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.
    """

    device: Device
    name: str

    def __call__(self, proxy: Any, values: torch.Tensor) -> None:
        device = self.device
        region = device.region_of(self.name)
        array = view_as_numpy(values.reshape(device.program.regions[region].shape))
        device.overwrite(region, array, name=self.name)


def region_closures(device: Device, name: str) -> tuple[RegionGetter, RegionSetter]:
    """Getter and setter closures of a region.

    Args:
        device: The device.
        name: Name of a tensor or region, those of gradients included.

    Returns:
        What ``ensure_bagua_tensor`` takes.

    Raises:
        UnknownName: If the device knows no such name.
    """
    device.region_of(name)
    return RegionGetter(device, name), RegionSetter(device, name)


class DeviceTrainedModel(TrainedModel):
    """A model on the device: its tensors are regions, found by the parameters' names.

    Args:
        loaded: The model with its program.
        algorithm: What replicas communicate, and when.
        world: The ranks.

    Raises:
        NotDataParallel: If the program has no gradient buckets.
    """

    def __init__(self, loaded: LoadedProgram, algorithm: Algorithm, world: World) -> None:
        self._device: Device = loaded.device
        parameters, self.name_of = _parameters(loaded)
        if not parameters:
            raise NotDataParallel(program=loaded.program.name)
        super().__init__(
            parameters=parameters,
            optimizers=getattr(loaded, "optimizers", ()),
            module_name=loaded.program.name,
            world=world,
        )
        self.algorithm = algorithm

    def gradient(self, name: str) -> Closures:
        return region_closures(self._device, f"{name}__grad")

    def weight(self, name: str) -> Closures:
        return region_closures(self._device, name)

    def moments(self, optimizer: QAdamOptimizer) -> Moments:
        program, device = self._device.program, self._device
        rows = {
            param.weight: (entry, param.states[0])
            for entry in program.optimizers
            if entry.kind is OptimizerKind.QADAM
            for param in entry.params
        }
        regions = {name: device.region_of(name) for name in self.parameters}
        missing = [name for name, region in regions.items() if region not in rows]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that {program.name} updates by another rule",
                wanted="a program compiled with a QAdamOptimizer of all trained parameters",
                hint="Compile with it: samba.session.compile(model, inputs, optimizer).",
            )
        used = {name: rows[region] for name, region in regions.items()}
        rates = {name: 1 - dict(entry.options)["beta1"] for name, (entry, _) in used.items()}
        warm_up = {entry.step: dict(entry.options)["warmup_steps"] for entry, _ in used.values()}
        return Moments(
            warming=lambda: all(float(device.read(at)) < steps for at, steps in warm_up.items()),
            closures={
                name: region_closures(device, program.regions[moment].name)
                for name, (_, moment) in used.items()
            },
            rate=rates.__getitem__,
        )


def _parameters(loaded: LoadedProgram) -> tuple[dict[str, torch.nn.Parameter], dict[int, str]]:
    """Parameters by name, those whose gradients come first last, and names by gradient region."""
    program, place = loaded.program, loaded.device.buffer_map.place
    symbols = {s.name: s for s in program.symbols}
    model = getattr(loaded, "model", None)
    traced = getattr(loaded, "traced", None)
    if model is None or traced is None:  # several graphs: they do not train
        return {}, {}
    of_path = dict(model.named_parameters(remove_duplicate=False))
    parameters: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for source in traced.sources:
        symbol = symbols.get(source.name)
        if source.role is Role.WEIGHT and symbol is not None and symbol.grad_region in place:
            parameters.setdefault(symbol.grad_region, (source.name, of_path[source.path]))
    order = sorted(parameters, key=lambda r: (place[r][0].index, place[r][1]), reverse=True)
    return {parameters[r][0]: parameters[r][1] for r in order}, {r: parameters[r][0] for r in order}
