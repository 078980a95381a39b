"""First moments of Adam, which qadam communicates: on the host, and in regions of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from emulator.device import Device
from pef_schema.program import OptimizerKind
from samba.distributed.bagua.regions import region_closures
from samba.distributed.bagua.replica import Closures
from samba.errors import ArgumentError
from samba.optim.qadam import QAdamOptimizer
from samba.tensor.views import view_as_numpy, view_as_torch


class Moments(ABC):
    """The first moments of a model's parameters, and how far the warm-up is."""

    @property
    @abstractmethod
    def warming(self) -> bool:
        """Whether the next step is one of the warm-up."""

    @abstractmethod
    def closures(self, name: str) -> Closures:
        """Closures of a parameter's first moment.

        Args:
            name: Name of the parameter.
        """

    @abstractmethod
    def update(self, parameter: torch.Tensor) -> None:
        """Move a parameter's first moment towards this replica's gradient.

        Args:
            parameter: The parameter.
        """


class HostMoments(Moments):
    """Moments in a torch optimizer.

    Args:
        optimizer: The optimizer.
        parameters: The trained parameters by name.

    Raises:
        ArgumentError: If the optimizer lacks one of them.
    """

    def __init__(
        self, optimizer: QAdamOptimizer, parameters: Mapping[str, torch.nn.Parameter]
    ) -> None:
        self._optimizer = optimizer
        self._groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        missing = [name for name, p in parameters.items() if id(p) not in self._groups]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that the optimizer does not have",
                wanted="all trained parameters in the QAdamOptimizer",
            )

    @property
    def warming(self) -> bool:
        return self._optimizer.steps_done < self._optimizer.warmup_steps

    def closures(self, name: str) -> Closures:
        return self._moment, self._set_moment

    def _moment(self, parameter: Any) -> torch.Tensor:
        return self._optimizer.state_of(parameter)["exp_avg"]

    def _set_moment(self, parameter: Any, value: torch.Tensor) -> None:
        self._optimizer.state_of(parameter)["exp_avg"] = value

    def update(self, parameter: torch.Tensor) -> None:
        group = self._groups[id(parameter)]
        gradient = self._optimizer.decayed(parameter, group)
        self._moment(parameter).lerp_(gradient, 1 - group["betas"][0])


class RegionMoments(Moments):
    """Moments in regions of a device; options and argins are those of its program.

    Args:
        device: The device.
        parameters: The trained parameters by name.

    Raises:
        ArgumentError: If the program updates one of them by another rule.
    """

    def __init__(self, device: Device, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._device = device
        program = device.program
        rows = {
            p.weight: (entry, p)
            for entry in program.optimizers
            if entry.kind is OptimizerKind.QADAM
            for p in entry.params
        }
        regions = {name: device.region_of(name) for name in parameters}
        missing = [name for name, region in regions.items() if region not in rows]
        if missing:
            raise ArgumentError(
                where="QAdamAlgorithm",
                found=f"parameters {missing} that {program.name} updates by another rule",
                wanted="a program compiled with a QAdamOptimizer of all trained parameters",
                hint="Compile with it: samba.session.compile(model, inputs, optimizer).",
            )
        argins = {argin.region: index for index, argin in enumerate(program.argins)}
        self._names = {id(p): name for name, p in parameters.items()}
        self._rows = {
            name: _Row(
                weight=region,
                gradient=param.grad,
                moment=param.states[0],
                rate=1 - dict(entry.options)["beta1"],
                decay=argins[dict(entry.argins)["weight_decay"]],
            )
            for name, region in regions.items()
            for entry, param in [rows[region]]
        }
        used = {rows[region][0].step: rows[region][0] for region in regions.values()}
        self._warm_up = [(step, dict(e.options)["warmup_steps"]) for step, e in used.items()]

    @property
    def warming(self) -> bool:
        return all(float(self._device.read(step)) < steps for step, steps in self._warm_up)

    def closures(self, name: str) -> Closures:
        moment = self._rows[name].moment
        return region_closures(self._device, self._device.program.regions[moment].name)

    def update(self, parameter: torch.Tensor) -> None:
        device, row = self._device, self._rows[self._names[id(parameter)]]
        gradient, moment = self._read(row.gradient), self._read(row.moment)
        decay = device.argin(row.decay)
        if decay:
            gradient = gradient.add(self._read(row.weight), alpha=decay)
        moment.lerp_(gradient, row.rate)
        device.overwrite(row.moment, view_as_numpy(moment))

    def _read(self, region: int) -> torch.Tensor:
        return view_as_torch(self._device.read(region))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What the update of a first moment needs.

    Args:
        weight, gradient, moment: Regions.
        rate: How far the moment moves towards the gradient.
        decay: Number of the argin with the weight decay.
    """

    weight: int
    gradient: int
    moment: int
    rate: float
    decay: int
